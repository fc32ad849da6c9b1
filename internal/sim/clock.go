package sim

import "time"

// clock is the time of an engine that may run slower than simulated time: since its last change it
// advances 1000/stretch as fast.
type clock struct {
	world   time.Duration // last change, in simulated time
	engine  time.Duration // last change, in engine time
	stretch time.Duration // per mille; 0 = 1000
}

// perMille is the stretch of normal speed.
const perMille = 1000

// at returns the engine's time at a simulated time, rounded down.
func (c *clock) at(world time.Duration) time.Duration {
	if c.stretch == 0 {
		return c.engine + world - c.world
	}
	return c.engine + (world-c.world)*perMille/c.stretch
}

// when returns the first simulated time at which at returns an engine's time.
func (c *clock) when(engine time.Duration) time.Duration {
	if c.stretch == 0 {
		return c.world + engine - c.engine
	}
	whole, rest := (engine-c.engine)/perMille, (engine-c.engine)%perMille
	return c.world + whole*c.stretch + (rest*c.stretch+perMille-1)/perMille
}

// slow makes the engine slower by factor from now on.
func (c *clock) slow(now time.Duration, factor float64) {
	c.engine, c.world = c.at(now), now
	c.stretch = time.Duration(factor * perMille)
}
