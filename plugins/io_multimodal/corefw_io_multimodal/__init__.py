"""Media in chats: parts that aren't text become items, fetched and decoded within limits, for the model's plugin."""
