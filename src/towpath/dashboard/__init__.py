"""The dashboard: the frame, its doors, and the pages of the engine. Applications bring their own"""
