package tui

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
)

// recordLine returns a line of a recording: a snapshot the given seconds after noon.
func recordLine(t testing.TB, seconds float64) string {
	t.Helper()
	line, err := json.Marshal(telemetry.Snapshot{
		At: noon.Add(time.Duration(seconds * float64(time.Second))), Service: "chat", Regions: []telemetry.RegionSnapshot{region("local/us", replica("us-0", "L4", 0.5))},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

// record writes a record and returns its name.
func record(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if strings.HasSuffix(name, ".gz") {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		text = packed.String()
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// opened opens a replay of a record, which is closed when the test ends.
func opened(t *testing.T, file string, speed float64) *Replay {
	t.Helper()
	r, err := OpenReplay(file, speed, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// showing returns the time of the current snapshot, in seconds after noon.
func showing(t *testing.T, r *Replay) (second float64, source string) {
	t.Helper()
	s, source, err := r.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.At.Sub(noon).Seconds(), source
}

// Each snapshot is returned at its time since the first Fetch; the last one remains. A
// snapshot with an earlier time than its predecessor is returned at once.
func TestReplayKeepsRecordedTiming(t *testing.T) {
	for _, name := range []string{"day.jsonl", "day.jsonl.gz"} {
		for _, speed := range []float64{1, 4, 0.5} {
			synctest.Test(t, func(t *testing.T) {
				file := record(t, name, recordLine(t, 0)+recordLine(t, 2)+recordLine(t, 1.5)+recordLine(t, 10))
				r := opened(t, file, speed)
				time.Sleep(time.Hour)
				began := time.Now()
				for _, step := range []struct{ until, want float64 }{{0, 0}, {1.9, 0}, {2, 1.5}, {9.9, 1.5}, {10, 10}, {5000, 10}} {
					time.Sleep(time.Until(began.Add(time.Duration(step.until / speed * float64(time.Second)))))
					got, source := showing(t, r)
					ended := step.until >= 10
					if got != step.want || strings.HasSuffix(source, ": end of recording") != ended || r.Ended() != ended || !strings.HasPrefix(source, file) {
						t.Errorf("speed %g at %gs: shows %g as %q, want %g", speed, step.until, got, source, step.want)
					}
				}
			})
		}
	}
}

func TestInvalidRecordings(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":               {"", ": the recording is empty"},
		"no JSON":             {"12:00 up 3 days\n", ":1: must be one snapshot per line, as written by --record: this line is not JSON"},
		"printed over lines":  {"{\n  \"at\": 1\n}\n", ":1: must be one snapshot per line, as written by --record: this line is not JSON"},
		"something else":      {`{"a":1}` + "\n", ":1: must be a snapshot with the keys at and regions"},
		"no time":             {`{"regions":[]}` + "\n", ":1: must be a snapshot with the keys at and regions"},
		"a list":              {"[]\n", ":1: must be one snapshot per line"},
		"a balancer's record": {`{"record":2,"started":"2026-03-04T12:00:00Z","self":{},"config":{}}` + "\n", ":1: this is the record of a balancer; use 'skyserve sim replay'"},
		"an empty line":       {"\n" + `{"at":"2026-03-04T12:00:00Z","regions":[]}`, ":1: must be a snapshot, found an empty line"},
	} {
		file := record(t, "r.jsonl", c.text)
		if _, err := OpenReplay(file, 1, time.Now); err == nil || !strings.Contains(err.Error(), "reading "+file+c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := OpenReplay("nowhere.jsonl", 1, time.Now); err == nil || !strings.Contains(err.Error(), "opening the recording: open nowhere.jsonl") {
		t.Errorf("got %v", err)
	}
	plain := filepath.Join(t.TempDir(), "plain.gz")
	if err := os.WriteFile(plain, []byte(recordLine(t, 0)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReplay(plain, 1, time.Now); err == nil || !strings.Contains(err.Error(), plain+": unpacking gzip: gzip: invalid header") {
		t.Errorf("got %v", err)
	}
}

// A record is replayed up to the first damaged line; every later Fetch returns an error
// with that line.
func TestDamagedLineIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := record(t, "r.jsonl", recordLine(t, 0)+recordLine(t, 1)+recordLine(t, 2)[:40]+"\n"+recordLine(t, 3))
		r := opened(t, file, 1)
		if got, _ := showing(t, r); got != 0 {
			t.Errorf("shows %g", got)
		}
		for range 2 {
			time.Sleep(time.Second)
			if s, _, err := r.Fetch(t.Context()); s != nil || !errors.As(err, new(FileError)) || !strings.Contains(err.Error(), "reading "+file+":3: must be one snapshot per line") || r.Ended() {
				t.Errorf("got %v, %v", s, err)
			}
		}
	})
}

// After the writer of a compressed record was killed, all complete lines are replayed.
func TestTruncatedRecordingIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		for i := range 3 {
			if _, err := z.Write([]byte(recordLine(t, float64(i)))); err != nil {
				t.Fatal(err)
			}
			if err := z.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "killed.gz")
		if err := os.WriteFile(file, packed.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		r := opened(t, file, 1)
		showing(t, r)
		time.Sleep(time.Minute)
		if got, source := showing(t, r); got != 2 || !r.Ended() {
			t.Errorf("shows %g as %q", got, source)
		}
	})
}

// A writer that is killed within a line leaves a part of it, which is not shown.
func TestLineCutByItsWriterEndsRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write([]byte(recordLine(t, 0) + recordLine(t, 1) + recordLine(t, 2)[:40])); err != nil {
			t.Fatal(err)
		}
		if err := z.Flush(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "killed.gz")
		if err := os.WriteFile(file, packed.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		r := opened(t, file, 1)
		showing(t, r)
		time.Sleep(time.Minute)
		if got, source := showing(t, r); got != 1 || !r.Ended() {
			t.Errorf("shows %g as %q", got, source)
		}
	})
}

func FuzzReplay(f *testing.F) {
	f.Add(recordLine(f, 0) + recordLine(f, 1))
	f.Add(recordLine(f, 0) + "\n")
	f.Add(`{"record":2}`)
	f.Add(`{"at":"0001-01-01T00:00:00Z","regions":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		now := noon
		r, err := newReplay("r", strings.NewReader(text), 1, func() time.Time { return now })
		for range strings.Count(text, "\n") + 2 {
			if err != nil {
				if !strings.HasPrefix(err.Error(), "reading r") {
					t.Fatalf("an error without a place: %v", err)
				}
				return
			}
			var s *telemetry.Snapshot
			if s, _, err = r.Fetch(t.Context()); err == nil && (s.At.IsZero() || s.Regions == nil) {
				t.Fatalf("%+v is no snapshot", s)
			}
			now = now.Add(1000 * time.Hour)
		}
	})
}
