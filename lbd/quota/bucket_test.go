package quota

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// dumbBucket is the reference in fractions: without rounding or overflow.
type dumbBucket struct {
	limit, level, debt *big.Rat
	at                 int64
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func (b *dumbBucket) fill(us int64) {
	if us <= b.at {
		return
	}
	b.level.Add(b.level, new(big.Rat).Mul(b.limit, big.NewRat(us-b.at, 60e6)))
	b.at = us
	b.clamp()
}

func (b *dumbBucket) clamp() {
	if b.level.Cmp(b.limit) > 0 {
		b.level.Set(b.limit)
	}
	if least := new(big.Rat).Neg(b.debt); b.level.Cmp(least) < 0 {
		b.level.Set(least)
	}
}

func TestBucketMatchesReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1, 1e9)).Draw(t, "limit")
		var b bucket
		b.set(limit, 0)
		d := &dumbBucket{limit: rat(limit), level: rat(limit), debt: new(big.Rat).Mul(rat(limit), rat(60))}
		var us int64
		amount := rapid.OneOf(rapid.Int64Range(0, 10), rapid.Int64Range(0, limit+1), rapid.Int64Range(0, 1e10))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			us += rapid.OneOf(rapid.Int64Range(-1000, 1000), rapid.Int64Range(0, 90e6), rapid.Int64Range(0, 1e13)).Draw(t, "pass")
			us = max(us, 0)
			now := time.Duration(us) * time.Microsecond
			n := amount.Draw(t, "n")
			d.fill(us)
			if rapid.Bool().Draw(t, "take") {
				wait, never, ok := b.take(n, now)
				if want := d.level.Cmp(rat(n)) >= 0; ok != want || never != (n > limit) {
					t.Fatalf("take %d of %s: ok %v never %v", n, d.level.FloatString(9), ok, never)
				}
				if ok {
					d.level.Sub(d.level, rat(n))
				} else if !never {
					waits(t, b, n, wait, now)
				}
			} else {
				n *= rapid.SampledFrom([]int64{1, -1}).Draw(t, "sign")
				b.giveBack(n, now)
				d.level.Add(d.level, rat(n))
				d.clamp()
			}
			if got := big.NewRat(b.level, partsPerToken); got.Cmp(d.level) != 0 {
				t.Fatalf("level %s, want %s", got.FloatString(9), d.level.FloatString(9))
			}
		}
	})
}

// waits checks on a copy that a wait is long enough, and that a microsecond less is not.
func waits(t *rapid.T, b bucket, n int64, wait, now time.Duration) {
	now = max(now, time.Duration(b.at)*time.Microsecond)
	early := b
	if _, _, ok := early.take(n, now+wait-time.Microsecond); ok {
		t.Fatalf("%d pass before the wait of %v is over", n, wait)
	}
	if _, _, ok := b.take(n, now+wait); !ok {
		t.Fatalf("%d do not pass after the wait of %v", n, wait)
	}
}

func TestBucketKeepsLevelWhenLimitChanges(t *testing.T) {
	var b bucket
	if _, _, ok := b.take(1<<40, 0); !ok {
		t.Error("without a limit something does not pass")
	}
	b.set(60, time.Second)
	if left, _ := b.remaining(time.Second); left != 60 {
		t.Errorf("a first limit leaves %d of 60", left)
	}
	b.take(50, time.Second)
	b.set(120, time.Second)
	if left, full := b.remaining(time.Second); left != 10 || full != 55*time.Second {
		t.Errorf("a higher limit leaves %d, full in %v; want 10 and 55s", left, full)
	}
	b.set(5, time.Second)
	if left, full := b.remaining(time.Second); left != 5 || full != 0 {
		t.Errorf("a lower limit leaves %d, full in %v", left, full)
	}
}
