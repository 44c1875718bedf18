"""Configuration as values: UserArgs → EngineConfig → RuntimePlan. Nothing here is edited in place."""
