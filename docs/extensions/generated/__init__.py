"""Writers of the generated pages of the reference: each module turns a part of the code into Markdown."""
