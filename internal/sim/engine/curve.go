package engine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Knot is one point of a Curve: how long a step of that size takes.
type Knot struct {
	At   int           // tokens of a prefill step, or requests of a decode step
	Time time.Duration // of the step
}

// Curve is how long a step takes by its size: straight between its knots, flat
// before the first, because what a step costs at least is reading the weights,
// and beyond the last as the last two lead. Knots ascend and times do not fall.
// A curve is not changed once it is made.
type Curve []Knot

// The bounds of a knot: far beyond any engine, they keep times from overflowing.
const (
	maxKnotAt   = 1 << 30
	maxKnotTime = time.Hour
)

// at is the curve's value; there is at least one knot. It is exact where the
// slope is whole nanoseconds, and rounds down elsewhere.
func (c Curve) at(x int) time.Duration {
	if x <= c[0].At || len(c) == 1 {
		return c[0].Time
	}
	low, high := 0, len(c)-1 // the segment begins at low or later, before high
	for low+1 < high {
		if mid := (low + high) / 2; c[mid].At <= x {
			low = mid
		} else {
			high = mid
		}
	}
	from, to := c[low], c[low+1]
	run, rise := time.Duration(to.At-from.At), to.Time-from.Time
	beyond := time.Duration(x - from.At)
	// rise*beyond/run without the product, which could overflow.
	return from.Time + rise/run*beyond + rise%run*beyond/run
}

// Validate says what is wrong with the curve, by the place of the knot, or nil.
// No knots are a curve that says nothing, and are fine.
func (c Curve) Validate() error {
	for i, k := range c {
		switch {
		case k.At < 0 || k.At > maxKnotAt:
			return fmt.Errorf("knot %d: must be at 0 to %d, got %d", i+1, maxKnotAt, k.At)
		case k.Time <= 0 || k.Time > maxKnotTime:
			return fmt.Errorf("knot %d (at %d): time must be more than 0 and at most %s, got %s", i+1, k.At, maxKnotTime, k.Time)
		case i > 0 && k.At <= c[i-1].At:
			return fmt.Errorf("knot %d: must be beyond the one before it at %d, got %d", i+1, c[i-1].At, k.At)
		case i > 0 && k.Time < c[i-1].Time:
			return fmt.Errorf("knot %d (at %d): time must not be below the %s before it, got %s", i+1, k.At, c[i-1].Time, k.Time)
		}
	}
	return nil
}

// scaled is the curve of a machine on which everything takes factor times as long.
func (c Curve) scaled(factor float64) Curve {
	out := slices.Clone(c)
	for i := range out {
		out[i].Time = max(1, scale(out[i].Time, factor))
	}
	return out
}

func scale(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(d)*factor + 0.5)
}

// String writes the curve as ParseCurve reads it: 128=65347us,512=94310us.
func (c Curve) String() string {
	parts := make([]string, len(c))
	for i, k := range c {
		parts[i] = strconv.Itoa(k.At) + "=" + brief(k.Time)
	}
	return strings.Join(parts, ",")
}

// brief writes a duration in its largest whole unit: 65347us, not 65.347ms.
func brief(d time.Duration) string {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}} {
		if d%unit.of == 0 {
			return strconv.FormatInt(int64(d/unit.of), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// ParseCurve reads knots as SIZE=TIME with commas between them, such as
// 128=65.3ms,512=94.3ms. What is wrong is said with the place of its knot.
func ParseCurve(text string) (Curve, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("want knots such as 128=65.3ms,512=94.3ms, got none")
	}
	var c Curve
	for part := range strings.SplitSeq(text, ",") {
		size, took, ok := strings.Cut(part, "=")
		at, err := strconv.Atoi(strings.TrimSpace(size))
		if !ok || err != nil {
			return nil, fmt.Errorf("knot %d: want SIZE=TIME such as 128=65.3ms, got %q", len(c)+1, strings.TrimSpace(part))
		}
		d, err := time.ParseDuration(strings.TrimSpace(took))
		if err != nil {
			return nil, fmt.Errorf("knot %d (at %d): want a duration such as 65.3ms, got %q", len(c)+1, at, strings.TrimSpace(took))
		}
		c = append(c, Knot{at, d})
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}
