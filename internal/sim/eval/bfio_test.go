package eval

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// The paper's claim with a margin for a different sample of lengths: BF-IO's imbalance is at least 8
// times below FCFS with H=0 and 15 times with H=20, and with waits bounded at 200 steps at least 5 and
// 11 times.
func TestBFIOTable1MatchesPaperClaims(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "it computes, which takes minutes with the detector on")
	ticks := time.Duration(0)
	report, err := RunBFIO(context.Background(), "bfio-table1", 1, 0, func() time.Duration { ticks += time.Microsecond; return ticks }, noProgress)
	if err != nil {
		t.Fatal(err)
	}
	at := map[[2]int]*BFIORow{}
	var fcfs *BFIORow
	for i := range report.Rows {
		r := &report.Rows[i]
		switch r.Policy {
		case "fcfs":
			fcfs = r
		case "bf-io":
			at[[2]int{r.H, r.WaitBound}] = r
		}
		if r.Decision.P50 != 1 || r.Decision.Max != 1 {
			t.Errorf("%s H=%d: decisions of one tick are reported as %+v", r.Policy, r.H, r.Decision)
		}
	}
	for _, c := range []struct {
		h, bound int
		factor   float64
	}{{0, 0, 8}, {20, 0, 15}, {0, 200, 5}, {20, 200, 11}} {
		r := at[[2]int{c.h, c.bound}]
		if got := fcfs.Imbalance / r.Imbalance; got < c.factor {
			t.Errorf("H=%d, bound %d: imbalance %.1f times below fcfs, want %v", c.h, c.bound, got, c.factor)
		}
	}
	if gain := at[[2]int{0, 0}].Throughput / fcfs.Throughput; gain < 1.12 {
		t.Errorf("throughput %.3f of fcfs, want 1.12", gain)
	}
	var table strings.Builder
	if err := report.WriteTable(&table); err != nil || strings.Count(table.String(), "\n") != 2+len(report.Rows) || !strings.Contains(table.String(), "(27.90)") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestRunBFIOReturnsOnCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := RunBFIO(ctx, "bfio-table1", 1, 0, func() time.Duration { return 0 }, noProgress); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// noProgress ignores the progress of runs.
func noProgress(int, int) {}
