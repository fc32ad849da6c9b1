package engine

import (
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestCurveInterpolation(t *testing.T) {
	c := Curve{{128, 60 * ms}, {256, 60 * ms}, {512, 100 * ms}, {1024, 200 * ms}}
	for _, at := range []struct {
		x    int
		want time.Duration
	}{
		{0, 60 * ms},
		{1, 60 * ms},
		{128, 60 * ms},
		{200, 60 * ms},
		{256, 60 * ms},
		{384, 80 * ms},
		{512, 100 * ms},
		{768, 150 * ms},
		{1024, 200 * ms},
		{2048, 400 * ms}, // as the last two lead
	} {
		if got := c.at(at.x); got != at.want {
			t.Errorf("at %d: %s, want %s", at.x, got, at.want)
		}
	}
	if got := (Curve{{8, 5 * ms}}).at(100); got != 5*ms {
		t.Errorf("a curve of one knot is %s at 100", got)
	}
}

// drawCurve draws a valid curve.
func drawCurve(t *rapid.T) Curve {
	var c Curve
	at, took := rapid.IntRange(0, 100).Draw(t, "at"), time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "time"))
	for range rapid.IntRange(1, 12).Draw(t, "knots") {
		c = append(c, Knot{at, took})
		at += rapid.IntRange(1, 5000).Draw(t, "step")
		took += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "rise"))
	}
	return c
}

// twin is the reference: it searches the segment linearly and computes without overflow.
func twin(c Curve, x int) time.Duration {
	if x <= c[0].At || len(c) == 1 {
		return c[0].Time
	}
	i := 0
	for i+2 < len(c) && x >= c[i+1].At {
		i++
	}
	product := new(big.Int).Mul(big.NewInt(int64(c[i+1].Time-c[i].Time)), big.NewInt(int64(x-c[i].At)))
	return c[i].Time + time.Duration(product.Div(product, big.NewInt(int64(c[i+1].At-c[i].At))).Int64())
}

func TestCurveMatchesReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCurve(t)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		x, more := rapid.IntRange(0, 100_000).Draw(t, "x"), rapid.IntRange(0, 1000).Draw(t, "more")
		if got, want := c.at(x), twin(c, x); got != want {
			t.Fatalf("%v at %d: %d, want %d", c, x, got, want)
		}
		if c.at(x+more) < c.at(x) {
			t.Fatalf("%v falls from %d to %d", c, x, x+more)
		}
		read, err := ParseCurve(c.String())
		if err != nil || !reflect.DeepEqual(read, c) {
			t.Fatalf("wrote %s and read %v, %v", c, read, err)
		}
	})
}

// Constants written as curves yield the same engine: every event at the same time.
func TestConstantsEqualTwoKnotCurves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, ops := drawProfile(t), drawOps(t)
		curved := p
		curved.Prefill = Curve{{0, p.PrefillBase}, {1, p.PrefillBase + p.PrefillPerToken}}
		curved.Decode = Curve{{0, p.DecodeBase}, {1, p.DecodeBase + p.DecodePerRequest}}
		curved.PrefillBase, curved.PrefillPerToken, curved.DecodeBase, curved.DecodePerRequest = 0, 0, 0, 0
		tokens, k, n := rapid.IntRange(0, 10_000).Draw(t, "tokens"), rapid.IntRange(1, 500).Draw(t, "k"), rapid.IntRange(1, 300).Draw(t, "n")
		kv := rapid.IntRange(0, 100_000).Draw(t, "kv")
		if a, b := p.prefillTime(tokens), curved.prefillTime(tokens); a != b {
			t.Fatalf("prefill of %d: %s and %s", tokens, a, b)
		}
		if a, b := p.decodeTime(k, n, kv), curved.decodeTime(k, n, kv); a != b {
			t.Fatalf("%d decodes of %d with %d: %s and %s", k, n, kv, a, b)
		}
		if a, b := liveLog(t, p, ops), liveLog(t, curved, ops); a != b {
			t.Fatalf("constants yield\n%s\nand curves\n%s", a, b)
		}
	})
}

// liveLog returns all events of an engine with a profile.
func liveLog(t *rapid.T, p Profile, ops []op) string {
	e, err := New(p, ReportTokens)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	live(t, e, ops, true, func(evs []Event) {
		for _, ev := range evs {
			fmt.Fprintf(&log, "%+v\n", ev)
		}
	})
	return log.String()
}

// k steps at once take as long as k single steps with growing context.
func TestCurveDecodeStepsAddUp(t *testing.T) {
	for _, p := range Profiles() {
		var sum time.Duration
		for i := range 50 {
			sum += p.decodeTime(1, 12, 4000+12*i)
		}
		if got := p.decodeTime(50, 12, 4000); got != sum {
			t.Errorf("%s: 50 steps take %s, one by one %s", p.Name, got, sum)
		}
	}
}

func TestInvalidCurves(t *testing.T) {
	for _, c := range []struct {
		curve Curve
		want  string
	}{
		{Curve{{-1, ms}}, "knot 1: must be at 0 to 1073741824, got -1"},
		{Curve{{1, ms}, {1, ms}}, "knot 2: must be greater than the previous knot 1, got 1"},
		{Curve{{2, ms}, {1, 2 * ms}}, "knot 2: must be greater than the previous knot 2, got 1"},
		{Curve{{1, 2 * ms}, {4, ms}}, "knot 2 (at 4): time must be at least the previous 2ms, got 1ms"},
		{Curve{{1, 0}}, "knot 1 (at 1): time must be greater than 0 and at most 1h0m0s, got 0s"},
		{Curve{{1, 2 * time.Hour}}, "knot 1 (at 1): time must be greater than 0 and at most 1h0m0s, got 2h0m0s"},
	} {
		for _, p := range []Profile{small(func(p *Profile) { p.Prefill = c.curve }), small(func(p *Profile) { p.Decode = c.curve })} {
			if err := p.Validate(); err == nil || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%v: got %v, want %s", c.curve, err, c.want)
			}
		}
	}
	for text, want := range map[string]string{
		"":              "must have knots such as 128=65.3ms,512=94.3ms, got none",
		"1":             `knot 1: must be SIZE=TIME such as 128=65.3ms, got "1"`,
		"1=1ms, x=2ms":  `knot 2: must be SIZE=TIME such as 128=65.3ms, got "x=2ms"`,
		"1=1ms,2=3":     `knot 2 (at 2): must be a duration such as 65.3ms, got "3"`,
		"1=1ms,2=NaNms": `knot 2 (at 2): must be a duration such as 65.3ms, got "NaNms"`,
		"1=2ms,2=1ms":   "knot 2 (at 2): time must be at least the previous 2ms, got 1ms",
	} {
		if _, err := ParseCurve(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	p := small(func(p *Profile) { p.DecodeBase, p.Decode = 0, Curve{{1, ms}} })
	if err := p.Validate(); err != nil {
		t.Errorf("a curve without a base: %v", err)
	}
}

// Every step of a slower machine takes longer by the factor.
func TestScaledProfiles(t *testing.T) {
	for _, p := range Profiles() {
		slow := p.Scaled(3)
		if err := slow.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]time.Duration{
			{slow.prefillTime(700), 3 * p.prefillTime(700)},
			{slow.decodeTime(9, 5, 2000), 3 * p.decodeTime(9, 5, 2000)},
		} {
			if off := pair[0] - pair[1]; off < -9 || off > 9 { // each curve rounds its own segments down
				t.Errorf("%s: three times slower takes %s, want %s", p.Name, pair[0], pair[1])
			}
		}
	}
	if got := (Curve{{1, 2}}).scaled(1e-9); got[0].Time != 1 {
		t.Errorf("a step takes %d ns", got[0].Time)
	}
}

func FuzzParseCurve(f *testing.F) {
	f.Add("128=65.3ms,512=94.3ms")
	f.Add("1=1h,2=1h")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCurve(text)
		if err != nil {
			return
		}
		again, err := ParseCurve(c.String())
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("%q reads as %v, written and read as %v, %v", text, c, again, err)
		}
		for _, x := range []int{0, 1, 100_000} {
			_ = c.at(x)
		}
	})
}

func BenchmarkCurve(b *testing.B) {
	p := Profiles()[3]
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if p.decodeTime(4, n&63, 20_000) == 0 || p.prefillTime(n&2047) == 0 {
			b.Fatal("a step takes no time")
		}
	}
}

func BenchmarkConstants(b *testing.B) {
	p := Profiles()[0]
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if p.decodeTime(4, n&63, 20_000) == 0 || p.prefillTime(n&2047) == 0 {
			b.Fatal("a step takes no time")
		}
	}
}
