//go:build compare && linux

package batch

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"skyserve/lbd/batch/job"
)

var (
	batchKills = flag.Int("batch.kills", 20, "number of processes that are killed")
	killSeed   = flag.Uint64("batch.seed", 1, "seed of the kills")
)

// requestsPerKill makes the batches last longer than the kills.
const requestsPerKill = 40

// TestCompareKills kills random processes with balancers, among them the one with the controller and the
// store, while batches run. A killed process is started again by `skyserve up`, or by the controller.
// Batches are submitted one after the other until all kills are done.
func TestCompareKills(t *testing.T) {
	s := startLive(t, strings.ReplaceAll(quickstart(t), "replicas: {min: 2, max: 8}", "replicas: {min: 1, max: 8}"))
	rng := rand.New(rand.NewPCG(*killSeed, 2))
	killed := map[string]int{}
	var victims []string
	for _, m := range s.Machines() {
		if strings.HasPrefix(m, "lb-") {
			victims = append(victims, m)
		}
	}
	t.Logf("%5s %8s %8s %8s %8s %8s  %s", "batch", "requests", "output", "errors", "missing", "twice", "kills so far")
	requests, missing, twice := 0, 0, 0
	for n, left := 1, *batchKills; left > 0; n++ {
		const kills = 10
		count := requestsPerKill * kills
		file := s.upload(0, func(w io.Writer) error { return writeDeferred(w, count) })
		b := s.create(0, file.ID, "/v1/chat/completions", "24h")
		for range min(kills, left) {
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
			victim := victims[rng.IntN(len(victims))]
			if s.Kill(victim) {
				for s.PID(victim) > 0 { // up must not find it alive
					time.Sleep(10 * time.Millisecond)
				}
				killed[victim]++
				left--
			}
			if out, err := s.Command("up", s.Document).CombinedOutput(); err != nil {
				t.Fatalf("starting %s again: %v: %s", victim, err, out)
			}
		}
		b = s.awaitStatus(b.ID, 5*time.Minute, job.Completed, job.Failed, job.Expired)
		seen := map[string]int{}
		output, failures := s.customIDs(b.OutputFileID, seen), s.customIDs(b.ErrorFileID, seen)
		lost, again := 0, 0
		for i := range count {
			switch seen[fmt.Sprint("r", i)] {
			case 0:
				lost++
			case 1:
			default:
				again++
			}
		}
		t.Logf("%5d %8d %8d %8d %8d %8d  %v", n, count, output, failures, lost, again, killed)
		if b.Status != job.Completed || output != count || failures+lost+again > 0 || len(seen) != count {
			t.Errorf("batch %d: %+v, %d custom_ids", n, b, len(seen))
		}
		requests, missing, twice = requests+count, missing+lost, twice+again
	}
	t.Logf("%d kills; %d requests, %d missing, %d twice", *batchKills, requests, missing, twice)
}

// customIDs counts the custom_ids of a file, and returns the number of its lines.
func (s *liveService) customIDs(file *string, seen map[string]int) (lines int) {
	s.t.Helper()
	if file == nil {
		return 0
	}
	var text []byte
	var err error
	for range 20 { // a balancer may be starting
		if err = s.call("GET", 0, PathFiles+"/"+*file+"/content", "", nil, &text); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var o job.Output
		if err := json.Unmarshal(line, &o); err != nil {
			s.t.Fatalf("%.200s: %v", line, err)
		}
		seen[o.CustomID]++
		lines++
	}
	return lines
}
