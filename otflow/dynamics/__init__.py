"""Time: the flow, what it records, its noise, its energy balance, and where it ends."""
