package engine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Knot is one point of a Curve: the time of a step of a size.
type Knot struct {
	At   int           // tokens of a prefill step, or requests of a decode step
	Time time.Duration // of the step
}

// Curve is the time of a step by its size: linear between knots, constant before the first, because
// reading the weights is the minimum cost, and extrapolated beyond the last. Knots ascend and times do
// not decrease. A curve is immutable.
type Curve []Knot

// Limits of a knot: far beyond any engine, they prevent overflow.
const (
	maxKnotAt   = 1 << 30
	maxKnotTime = time.Hour
)

// at returns the curve's value; there is at least one knot. It is exact if the slope is whole
// nanoseconds, and otherwise rounded down.
func (c Curve) at(x int) time.Duration {
	if x <= c[0].At || len(c) == 1 {
		return c[0].Time
	}
	low, high := 0, len(c)-1 // the segment starts at low or later, before high
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

// Validate returns an error with the position of the invalid knot, or nil. An empty curve is valid.
func (c Curve) Validate() error {
	for i, k := range c {
		switch {
		case k.At < 0 || k.At > maxKnotAt:
			return fmt.Errorf("knot %d: must be at 0 to %d, got %d", i+1, maxKnotAt, k.At)
		case k.Time <= 0 || k.Time > maxKnotTime:
			return fmt.Errorf("knot %d (at %d): time must be greater than 0 and at most %s, got %s", i+1, k.At, maxKnotTime, k.Time)
		case i > 0 && k.At <= c[i-1].At:
			return fmt.Errorf("knot %d: must be greater than the previous knot %d, got %d", i+1, c[i-1].At, k.At)
		case i > 0 && k.Time < c[i-1].Time:
			return fmt.Errorf("knot %d (at %d): time must be at least the previous %s, got %s", i+1, k.At, c[i-1].Time, k.Time)
		}
	}
	return nil
}

// scaled returns the curve of a machine that is slower by factor.
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

// String formats the curve for ParseCurve: 128=65347us,512=94310us.
func (c Curve) String() string {
	parts := make([]string, len(c))
	for i, k := range c {
		parts[i] = strconv.Itoa(k.At) + "=" + brief(k.Time)
	}
	return strings.Join(parts, ",")
}

// brief formats a duration in its largest whole unit: 65347us, not 65.347ms.
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

// ParseCurve parses comma-separated knots SIZE=TIME, such as 128=65.3ms,512=94.3ms. Errors contain the
// position of the knot.
func ParseCurve(text string) (Curve, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("must have knots such as 128=65.3ms,512=94.3ms, got none")
	}
	var c Curve
	for part := range strings.SplitSeq(text, ",") {
		size, took, ok := strings.Cut(part, "=")
		at, err := strconv.Atoi(strings.TrimSpace(size))
		if !ok || err != nil {
			return nil, fmt.Errorf("knot %d: must be SIZE=TIME such as 128=65.3ms, got %q", len(c)+1, strings.TrimSpace(part))
		}
		d, err := time.ParseDuration(strings.TrimSpace(took))
		if err != nil {
			return nil, fmt.Errorf("knot %d (at %d): must be a duration such as 65.3ms, got %q", len(c)+1, at, strings.TrimSpace(took))
		}
		c = append(c, Knot{at, d})
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}
