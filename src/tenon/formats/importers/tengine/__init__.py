"""Tengine: .tmfile of version 2."""
