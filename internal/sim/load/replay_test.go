package load

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/sim/workload"
)

// trace is a list of rows.
type trace struct {
	rows []workload.TraceRow
	err  error // after the rows; nil = io.EOF
}

func (t *trace) Next() (workload.TraceRow, error) {
	if len(t.rows) == 0 {
		if t.err != nil {
			return workload.TraceRow{}, t.err
		}
		return workload.TraceRow{}, io.EOF
	}
	row := t.rows[0]
	t.rows = t.rows[1:]
	return row, nil
}

func (t *trace) Skipped() int { return 3 }

// rowsAt returns rows at the given times, in us.
func rowsAt(at ...time.Duration) *trace {
	t := &trace{}
	for i, a := range at {
		t.rows = append(t.rows, workload.TraceRow{Number: i + 1, At: a, InputTokens: 10, OutputTokens: 4, Region: "us"})
	}
	return t
}

func TestReplayIssuesRowsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: streamed(4, 3*second, 0)} })
		c := oneRegion(svc)
		c.Targets = append(c.Targets, Target{"eu", "http://eu"})
		rows := rowsAt(0, 0, 200*time.Millisecond, 7*second)
		rows.rows[1].Region, rows.rows[1].Tier, rows.rows[1].User = "eu", "NIW", "bob"
		r, err := Replay(context.Background(), c, rows, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		checkLaw(t, r)
		at := map[time.Duration]int{}
		for _, s := range svc.seen {
			at[s.at]++
			if s.body.MaxTokens != 4 || !s.body.IgnoreEOS || len(s.body.Messages) != 1 || workload.CountTokens(s.body.Messages[0].Content) != 10 {
				t.Errorf("body %+v", s.body)
			}
			if eu := s.host == "eu"; eu != (s.header.Get("X-Skyserve-Tier") == "NIW") || eu != (s.body.User == "bob") {
				t.Errorf("%s got tier %q and user %q", s.host, s.header.Get("X-Skyserve-Tier"), s.body.User)
			}
		}
		if at[0] != 2 || at[200*time.Millisecond] != 1 || at[7*second] != 1 {
			t.Errorf("requests by time: %v", at)
		}
		if r.OK != 4 || r.ByRegion["eu"].OK != 1 || *r.RowsSkipped != 3 || *r.Delayed != 0 || *r.MaxLag != 0 || r.Interrupted {
			t.Errorf("report %+v", r)
		}
		wantClose(t, "duration: until the last response", r.DurationSeconds, 10, 1e-6)
		wantClose(t, "tokens/s", r.OutputTokensPerSecond, 1.6, 1e-6)
	})
}

func TestReplayCountsDelayedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: streamed(1, 2*second, 0)} })
		c := oneRegion(svc)
		c.MaxInFlight = 2
		r, err := Replay(context.Background(), c, rowsAt(0, second, 1500*time.Millisecond, 1600*time.Millisecond), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		// The third waits for the first until 2 s, the fourth for the second until 3 s.
		if r.OK != 4 || *r.Delayed != 2 || svc.seen[3].at != 3*second {
			t.Errorf("%d ok, %d delayed, the last one at %s", r.OK, *r.Delayed, svc.seen[3].at)
		}
		wantClose(t, "lag", *r.MaxLag, 1400, 1e-6)
	})
}

func TestReplayStopsAfterDuration(t *testing.T) {
	for _, c := range []struct {
		name  string
		bound int
		rows  *trace
	}{
		{"while it waits for a row", 8, rowsAt(0, second, time.Hour)},
		{"while it waits for a place", 2, rowsAt(0, second, 2*second, 3*second)},
		{"between rows", 8, rowsAt(0, second, 10*second, 10*second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := newFake(func(n int, _ seen) reply {
					return reply{chunks: streamed(1, 11*second+time.Duration(n)*time.Minute, 0)}
				})
				config := oneRegion(svc)
				config.MaxInFlight = c.bound
				begin := time.Now()
				r, err := Replay(context.Background(), config, c.rows, 1, 10*second-1)
				if err != nil {
					t.Fatal(err)
				}
				checkLaw(t, r)
				if took := time.Since(begin); took != 15*second-1 || r.OK != 1 || r.Cancelled != 1 || r.Interrupted {
					t.Errorf("after %s: %d ok, %d cancelled, interrupted %v", took, r.OK, r.Cancelled, r.Interrupted)
				}
				wantClose(t, "duration", r.DurationSeconds, 10, 1e-6)
				wantClose(t, "requests/s: the response came after the end", r.RequestsPerSecond, 0, 0)
			})
		})
	}
}

func TestReplayWithoutResponsesEndsAfterDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: []chunk{{time.Hour, ""}}} })
		r, err := Replay(context.Background(), oneRegion(svc), rowsAt(0, second), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cancelled != 2 || r.DurationSeconds != 6 || r.E2E != nil {
			t.Errorf("report %+v", r.ClientFigures)
		}
	})
}

func TestReplayOfEmptyTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Replay(context.Background(), oneRegion(newFake(nil)), rowsAt(), 1, 0)
		if err != nil || r.Requests != 0 || r.RequestsPerSecond != 0 || r.OutputTokensPerSecond != 0 {
			t.Errorf("report %+v, error %v", r, err)
		}
	})
}

func TestReplayInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: streamed(1, second, 0)} })
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(3*second, cancel)
		begin := time.Now()
		r, err := Replay(ctx, oneRegion(svc), rowsAt(0, time.Hour), 1, 0)
		if err != nil || !r.Interrupted || r.OK != 1 || time.Since(begin) != 3*second {
			t.Errorf("after %s: report %+v, error %v", time.Since(begin), r, err)
		}
	})
}

func TestMalformedRowEndsReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newFake(func(int, seen) reply { return reply{chunks: []chunk{{time.Hour, ""}}} })
		rows := rowsAt(0, second)
		rows.err = errors.New("reading t:3: bad")
		begin := time.Now()
		if _, err := Replay(context.Background(), oneRegion(svc), rows, 1, 0); !errors.Is(err, rows.err) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took != second {
			t.Errorf("it took %s to fail", took)
		}
	})
	rows := rowsAt(0)
	rows.rows[0].Region = "mars"
	want := `replaying row 1: region "mars" has no target`
	if _, err := Replay(context.Background(), oneRegion(newFake(nil)), rows, 1, 0); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
