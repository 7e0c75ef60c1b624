"""The weights of the bundled models, in `weights/`; `draftwise.zoo` reads them."""
