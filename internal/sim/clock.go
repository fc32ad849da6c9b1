package sim

import "time"

// clock is the time of an engine that may run slower than the world: from the
// instant of its last change on it takes stretch thousandths as long.
type clock struct {
	world   time.Duration // the last change, in the world's time
	engine  time.Duration // and in the engine's
	stretch time.Duration // thousandths; 0 stands for 1000
}

// perMille is a stretch that changes nothing.
const perMille = 1000

// at is the engine's time at an instant of the world, rounded down.
func (c *clock) at(world time.Duration) time.Duration {
	if c.stretch == 0 {
		return c.engine + world - c.world
	}
	return c.engine + (world-c.world)*perMille/c.stretch
}

// when is the first instant of the world at which at gives an engine's time.
func (c *clock) when(engine time.Duration) time.Duration {
	if c.stretch == 0 {
		return c.world + engine - c.engine
	}
	whole, rest := (engine-c.engine)/perMille, (engine-c.engine)%perMille
	return c.world + whole*c.stretch + (rest*c.stretch+perMille-1)/perMille
}

// slow makes everything take factor times as long from now on.
func (c *clock) slow(now time.Duration, factor float64) {
	c.engine, c.world = c.at(now), now
	c.stretch = time.Duration(factor * perMille)
}
