"""The dashboard: its public paths and the pages of the engine. Applications bring their own."""
