"""The OpenAI protocol: requests decoded strictly, responses and chunks as structs."""
