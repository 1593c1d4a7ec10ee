"""Language models behind HTTP, with the endpoints of OpenAI's API."""
