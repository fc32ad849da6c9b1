package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// publishedRecording is the recording of the quickstart that the docs speak of: examples/quickstart/record makes it.
const publishedRecording = "../../docs/recordings/first-five-minutes.jsonl.gz"

// readRecording reads a recording; fields that snapshots do not have are errors.
func readRecording(t *testing.T, name string) (snapshots []telemetry.Snapshot) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := json.NewDecoder(text)
	lines.DisallowUnknownFields()
	for {
		var s telemetry.Snapshot
		if err := lines.Decode(&s); errors.Is(err, io.EOF) {
			return snapshots
		} else if err != nil {
			t.Fatalf("snapshot %d: %v", len(snapshots), err)
		}
		snapshots = append(snapshots, s)
	}
}

// The published recording is small, shows what the docs say, and is replayed without a service.
func TestPublishedRecordingIsReplayed(t *testing.T) {
	if info, err := os.Stat(publishedRecording); err != nil || info.Size() > 300_000 {
		t.Fatalf("%v, %v", info, err)
	}
	all := readRecording(t, publishedRecording)
	first, last := all[0], all[len(all)-1]
	if span := last.At.Sub(first.At); span < 4*time.Minute || span > 6*time.Minute || len(first.Regions) != 3 {
		t.Errorf("it lasts %s, with the regions %+v", span, first.Regions)
	}
	has := map[string]bool{}
	for _, s := range all {
		has["plan"] = has["plan"] || s.Plan != nil
		has["alert"] = has["alert"] || len(s.Alerts) > 0
		for _, r := range s.Regions {
			has["traffic"] = has["traffic"] || r.RequestsPerSecond != nil && *r.RequestsPerSecond > 5
			has["forwarded"] = has["forwarded"] || r.ForwardedOut > 0
			for _, replica := range r.Replicas {
				has["added"] = has["added"] || replica.ID == "us-2" && replica.State == service.StateReady
				has["drained"] = has["drained"] || replica.ID == "eu-1" && replica.State != service.StateReady
			}
		}
	}
	for _, what := range []string{"plan", "alert", "traffic", "forwarded", "added", "drained"} {
		if !has[what] {
			t.Errorf("nothing is %s", what)
		}
	}
	out, err := top(t, "--replay", publishedRecording, "--speed", "100000", "-o", "json", "-n", "1000", "--interval", "100ms")
	var played telemetry.Snapshot
	if err == nil {
		lines := strings.Split(strings.TrimSpace(out), "\n")
		err = json.Unmarshal([]byte(lines[len(lines)-1]), &played)
	}
	if err != nil || played.Service != "quickstart" || !played.At.Equal(last.At) {
		t.Errorf("replayed %s until %s (%v), want %s", played.Service, played.At, err, last.At)
	}
}

// Two fetches may be in flight, as after the key r: their snapshots are recorded one after the other.
func TestConcurrentSnapshotsAreRecorded(t *testing.T) {
	for _, name := range []string{"r.jsonl", "r.jsonl.gz"} {
		file := filepath.Join(t.TempDir(), name)
		record, err := createRecord(file)
		if err != nil {
			t.Fatal(err)
		}
		s := telemetry.Snapshot{At: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), Regions: make([]telemetry.RegionSnapshot, 20)}
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				for range 50 {
					if err := record.addSnapshot(&s); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		if err := record.Close(); err != nil {
			t.Fatal(err)
		}
		replay, err := tui.OpenReplay(file, 1, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := replay.Fetch(t.Context()); err != nil || !replay.Ended() {
			t.Errorf("%s is damaged: %v", name, err)
		}
		if err := replay.Close(); err != nil {
			t.Error(err)
		}
	}
}
