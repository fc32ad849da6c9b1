//go:build compare && linux

package controller_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/load"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

var skewOld = flag.String("skew.old", "", "path of the binary of an earlier version: make skew sets it")

const (
	// leaderTries is how many leaders are stopped until one of each version has led.
	leaderTries = 12
	// stoppedLeader is how long a leader is stopped: longer than its lease and an election.
	stoppedLeader = 8 * time.Second
	// drained is longer than a balancer that is being stopped gives requests in flight: `up` takes it for one that works.
	drained = 12 * time.Second
	// forwardLimit is how long balancers may take to notice that a replica has stopped, and to forward; and to write again
	// after a leader was stopped.
	forwardLimit = 30 * time.Second
)

// skewWorld is a service of which machines run two versions.
type skewWorld struct {
	*controlWorld
	programs map[string]string // path of the binary by version
	running  map[string]string // version by the name of the file that a machine runs
}

// TestCompareSkew runs two versions beside each other: the quickstart with three controllers is started by an earlier
// version and updated by this one under load. While it is half updated, machines of both versions forward requests to
// each other, lead, and read what the other has written. Then it is updated completely. The way back by the earlier
// version's `up` is only reported: what it keeps is up to that version.
func TestCompareSkew(t *testing.T) {
	if *skewOld == "" {
		t.Fatal("-skew.old: must be the path of an earlier version's binary: make skew OLD=PATH")
	}
	document := strings.Replace(testkit.Quickstart(t, "../..", faultsName), ", prompt_tokens_per_second: 15000", "", 1) // earlier versions name this key differently
	c := openControlWorld(t, document)
	c.replicas = []string{"asia-0", "asia-1", "eu-0", "eu-1", "us-0", "us-1"}
	w := &skewWorld{controlWorld: c, programs: map[string]string{"old": *skewOld, "new": c.Program}, running: map[string]string{}}

	w.use("old")
	w.Run("up", w.Document)
	w.settle()
	w.learn("old")
	first := w.events(time.Time{})
	if len(first) == 0 {
		t.Fatal("the earlier version recorded no event")
	}
	t.Logf("started by the earlier version: %s; %d events", w.versions(), len(first))

	w.use("new")
	stopLoad, stopMarkers := w.startLoad(), w.writeMarkers(markerInterval)
	begin := time.Now()
	w.updateOne()
	time.Sleep(drained)
	w.up("") // starts a machine that the interrupted run had just stopped
	w.settle()
	w.learn("new")
	t.Logf("half updated after %.0f s: %s", time.Since(begin).Seconds(), w.versions())
	for _, version := range []string{"old", "new"} {
		if len(w.regionsOf(version)) == 0 {
			t.Fatalf("no balancer runs the %s version: %s", version, w.versions())
		}
		w.checkForwarding(version)
		w.use(version)
		w.checkHistory(first)
	}
	w.use("new")
	w.checkLeaders()
	w.settle()

	begin = time.Now()
	w.up("", "--upgrade")
	w.settle()
	t.Logf("updated after %.0f s: %s", time.Since(begin).Seconds(), w.versions())
	if old := w.regionsOf("old"); len(old) > 0 {
		t.Errorf("balancers in %v still run the earlier version", old)
	}
	w.checkHistory(first)
	logClients(t, "forward", stopLoad())
	written, lost := w.checkMarkers(stopMarkers())
	t.Logf("%d acknowledged writes, %d lost", written, len(lost))
	if len(lost) > 0 || written == 0 {
		t.Errorf("lost %v", lost)
	}

	stopLoad = w.startLoad()
	w.use("old")
	begin = time.Now()
	out, err := w.Command("up", w.Document, "--upgrade").CombinedOutput()
	t.Logf("`up --upgrade` of the earlier version: %v after %.0f s:\n%s", err, time.Since(begin).Seconds(), out)
	w.use("new")
	w.settle()
	t.Logf("after the return: %s; %d of %d events of the beginning are lost", w.versions(), len(w.lostEvents(first)), len(first))
	logClients(t, "back", stopLoad())
}

// use makes a version the one of the following commands.
func (w *skewWorld) use(version string) { w.Program = w.programs[version] }

// binary returns the name of the file that a machine runs.
func (w *skewWorld) binary(machine string) string {
	w.t.Helper()
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", w.PID(machine)))
	if err != nil {
		w.t.Fatalf("the binary of %s: %v", machine, err)
	}
	return strings.TrimSuffix(filepath.Base(path), " (deleted)")
}

// learn records the files that run and are not known yet as those of a version.
func (w *skewWorld) learn(version string) {
	w.t.Helper()
	for _, m := range slices.Concat(w.control, w.replicas) {
		if name := w.binary(m); w.running[name] == "" {
			w.running[name] = version
		}
	}
}

// versions lists the machines with their versions.
func (w *skewWorld) versions() string {
	w.t.Helper()
	var all []string
	for _, m := range slices.Concat(w.control, w.replicas) {
		all = append(all, m+" "+w.running[w.binary(m)])
	}
	return strings.Join(all, ", ")
}

// regionsOf returns the regions whose balancers run a version, in the order of service.yaml.
func (w *skewWorld) regionsOf(version string) (regions []string) {
	w.t.Helper()
	for _, region := range []string{"us", "eu", "asia"} {
		if w.running[w.binary("lb-"+region+"-0")] == version {
			regions = append(regions, region)
		}
	}
	return regions
}

// updateOne runs `up --upgrade` and interrupts it once it has updated the first balancer.
func (w *skewWorld) updateOne() {
	w.t.Helper()
	cmd := w.Command("up", w.Document, "--upgrade")
	out, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	var text strings.Builder
	updated := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if !updated && strings.Contains(lines.Text(), "updated lb-") {
			updated = true
			_ = cmd.Process.Signal(os.Interrupt) // checked by its output
		}
	}
	err = cmd.Wait()
	if !updated {
		w.t.Fatalf("up --upgrade updated no balancer: %v:\n%s", err, text.String())
	}
}

// lostEvents returns the events that are no longer there.
func (w *skewWorld) lostEvents(first []telemetry.Event) []telemetry.Event {
	w.t.Helper()
	now := w.events(time.Time{})
	return slices.DeleteFunc(slices.Clone(first), func(e telemetry.Event) bool {
		return slices.ContainsFunc(now, func(o telemetry.Event) bool { return o.ID == e.ID && o.Message == e.Message && o.At.Equal(e.At) })
	})
}

// checkHistory checks that the events of the beginning are still there.
func (w *skewWorld) checkHistory(first []telemetry.Event) {
	w.t.Helper()
	if lost := w.lostEvents(first); len(lost) > 0 {
		w.t.Errorf("%d of %d events are lost: %+v", len(lost), len(first), lost)
	}
}

// checkForwarding stops the replicas in all regions whose balancers run a version: these must forward to the
// balancers of the other version.
func (w *skewWorld) checkForwarding(version string) {
	w.t.Helper()
	regions := w.regionsOf(version)
	var resume []func()
	for _, region := range regions {
		resume = append(resume, w.stop(region+"-0"), w.stop(region+"-1"))
	}
	for _, region := range regions {
		at, err := "", error(nil)
		begin := time.Now()
		for end := begin.Add(forwardLimit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if at, err = w.complete(region); err == nil && !slices.Contains(regions, at) {
				break
			}
		}
		if err != nil || at == "" || slices.Contains(regions, at) {
			w.t.Errorf("the balancer of %s, of the %s version, forwards to %q: %v", region, version, at, err)
		} else {
			w.t.Logf("the balancer of %s, of the %s version, forwarded to %s after %.1f s", region, version, at, time.Since(begin).Seconds())
		}
	}
	for _, f := range resume {
		f()
	}
	w.settle()
}

// complete sends a request to a region's balancer and returns the region that served it.
func (w *skewWorld) complete(region string) (at string, err error) {
	index := slices.Index([]string{"us", "eu", "asia"}, region)
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL(index)+"/v1/completions", strings.NewReader(`{"model":"chat-small","prompt":"hello","max_tokens":4}`))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := w.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", res.Status, body)
	}
	return service.Region(res.Header.Get("X-Skyserve-Region")).ShortName(), err
}

// checkLeaders stops the leader until a controller of each version has led and all balancers accept writes.
func (w *skewWorld) checkLeaders() {
	w.t.Helper()
	led := map[string]bool{}
	for range leaderTries {
		leader := w.settle().Leadership.Leader
		version := w.running[w.binary(leader)]
		for n := range w.control {
			_, err := w.upload(w.t.Context(), n, "led by "+leader)
			for end := time.Now().Add(forwardLimit); err != nil && time.Now().Before(end); { // members that were stopped catch up
				_, err = w.upload(w.t.Context(), n, "led by "+leader)
			}
			if err != nil {
				w.t.Errorf("while %s of the %s version leads, a write at balancer %d: %v", leader, version, n, err)
			}
		}
		if led[version] = true; len(led) == 2 {
			break
		}
		resume := w.stop(leader)
		time.Sleep(stoppedLeader)
		resume()
	}
	w.t.Logf("led while half updated: %v", led)
	if len(led) < 2 {
		w.t.Errorf("only controllers of the version %v led in %d tries", led, leaderTries)
	}
}

// logClients prints what clients saw, and fails if a balancer gave a wrong answer: a client may only see refused
// connections, broken streams and rejections while its balancer is replaced.
func logClients(t *testing.T, name string, r load.Report) {
	t.Helper()
	for _, region := range []string{"us", "eu", "asia"} {
		f := r.ByRegion[region]
		t.Logf("clients, %s, %s: %d requests, %d ok, %d rejected, %d failed (%v), statuses %v, %d forwarded", name, region, f.Requests, f.OK, f.Rejected, f.Failed, f.Failures, f.ByStatus, f.Forwarded)
		for reason := range f.Failures {
			if reason != "connect" && reason != "stream_broken" && reason != "stream_error" {
				t.Errorf("%s: %s failed by %s: %s", name, region, reason, r.FirstError)
			}
		}
	}
	t.Logf("first error: %s", r.FirstError)
}
