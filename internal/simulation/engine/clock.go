package engine

import "time"

// work is time as an engine of speed 1 would need it. An engine of speed 0.5 does
// one second of work in two seconds.
type work time.Duration

// clock converts model time to work and back. Only the current speed is known, so future work
// is converted to model time again after each change.
type clock struct {
	speed float64
	model time.Duration // when the speed was set
	done  work          // work done until then
}

func (c *clock) workAt(t time.Duration) work {
	return c.done + work(float64(t-c.model)*c.speed)
}

func (c *clock) modelAt(w work) time.Duration {
	return c.model + time.Duration(float64(w-c.done)/c.speed)
}

func (c *clock) setSpeed(now time.Duration, speed float64) {
	c.done, c.model, c.speed = c.workAt(now), now, speed
}

func seconds(s float64) work { return work(s * float64(time.Second)) }
