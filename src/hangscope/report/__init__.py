"""From a verdict to what people and machines read. Renderers format; they decide nothing."""
