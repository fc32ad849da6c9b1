package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

const (
	// logTimeout is the timeout for reading the log of an unhealthy replica.
	logTimeout = 5 * time.Second
	// maxFailureLine is the maximum length of a kept log line in bytes.
	maxFailureLine = 300
	// heldTTL is how long a held launch is shown after its last attempt: a strategy repeats it every
	// few seconds to minutes.
	heldTTL = 5 * time.Minute
)

// launchState is the reconciler's state about launches and failed replicas.
type launchState struct {
	record replicaRecord
	gate   *provision.LaunchGate
	stored string // the record in the store
	held   []*provision.HeldError
	heldAt time.Time
}

// storeLaunches stores the state and the history of spot machines if they have changed, and publishes the
// state to readers.
func (rc *Reconciler) storeLaunches(ctx context.Context, s *observation) error {
	st := rc.launches
	var shown *telemetry.Launches
	now := rc.now()
	if now.Sub(st.heldAt) > heldTTL {
		st.held = nil
	}
	st.held = slices.DeleteFunc(st.held, func(h *provision.HeldError) bool {
		return isRefused(h) && isRunning(s.have, h.ID)
	})
	lines := []string{}
	for _, h := range st.held {
		lines = append(lines, h.ID+" in "+string(h.Region)+": "+h.Reason)
	}
	var text []byte
	var err error
	st.gate.Update(func(*provision.LaunchRecord) {
		text, err = json.Marshal(st.record)
		shown = st.record.launchesOf(boundsOf(s.spec), s.knownObjects(), lines, now)
	})
	alerts := telemetry.MergeAlerts(launchAlerts(shown, st.held, st.record.unhealthy(s.have)), interruptionAlerts(s.have, rc.seen))
	rc.mu.Lock()
	rc.shownLaunches, rc.launchAlerts = shown, alerts
	rc.mu.Unlock()
	if err == nil && string(text) != st.stored {
		if err = rc.storeRecords.Store(ctx, recordLaunches, json.RawMessage(text)); err == nil {
			st.stored = string(text)
		}
	}
	return errors.Join(err, rc.storeSpot(ctx))
}

// addHeld adds the launches that an error reports as held, or as refused by a cloud.
func (st *launchState) addHeld(err error, now time.Time) {
	held := heldErrors(err)
	for _, none := range errorsIn[*provision.AllOfferingsExhaustedError](err) {
		if h := st.refusedLaunch(none); h != nil {
			held = append(held, h)
		}
	}
	if len(held) == 0 {
		return
	}
	if now.Sub(st.heldAt) > time.Second { // otherwise of the same iteration
		st.held = nil
	}
	for _, h := range held {
		if !slices.ContainsFunc(st.held, func(old *provision.HeldError) bool { return old.ID == h.ID && old.Kind == h.Kind }) {
			st.held = append(st.held, h)
		}
	}
	st.heldAt = now
}

// markUnhealthy decides which replicas are taken out, records them, and returns all that are being taken
// out. Balancers stop using them, and removeDrained terminates them.
func (rc *Reconciler) markUnhealthy(ctx context.Context, bs *bundleState, s *observation, seen map[string]AgentReport) map[string]seenReplica {
	st, now := rc.launches, rc.now()
	exempt := map[string]bool{}
	for id := range bs.content.Draining {
		exempt[id] = true
	}
	in := healthInput{spec: s.spec, have: s.have, known: s.knownObjects(), seen: seen, exempt: exempt, now: now, dead: func(r provision.Object) bool {
		return isUnreachable(seen[r.ID].Err) && len(bs.delivery.provenDead([]provision.Object{r}, seen)) > 0
	}}
	var due []unhealthyReplica
	st.gate.Update(func(*provision.LaunchRecord) { due = st.record.findUnhealthy(in) })
	configs := configHashes(s.spec)
	for _, r := range due {
		lines := rc.failureLog(ctx, bs, r.object, seen[r.object.ID])
		st.gate.Update(func(*provision.LaunchRecord) { st.record.addFailure(r, configs[r.object.Labels["model"]], lines, now) })
		rc.log().Warn("replica unhealthy; replacing it", "id", r.object.ID, "model", r.object.Labels["model"], "region", string(r.object.Region), "reason", r.reason)
	}
	return st.record.unhealthy(s.have)
}

// failureLog returns the last lines of a replica's engine, without secrets; none where its agent does not
// respond.
func (rc *Reconciler) failureLog(ctx context.Context, bs *bundleState, r provision.Object, report AgentReport) []string {
	if report.Err != nil || bs.delivery == nil || rc.prober != nil && rc.logs == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	read := rc.logs
	if read == nil {
		read = func(ctx context.Context, r provision.Object) ([]byte, error) {
			return bs.delivery.AgentClient(r).Logs(ctx, bs.delivery.Machine(r), UnitNameOf(r.Kind), telemetry.MaxFailureLines)
		}
	}
	text, err := read(ctx, r)
	if err != nil {
		return []string{"its log cannot be read: " + printable.Line(err.Error())}
	}
	secrets, _ := secretsOf(bs.content) // those that can be read were delivered
	return failureLines(string(text), slices.Collect(maps.Values(secrets)))
}

// failureLines returns the last lines of a log: bounded, printable, and with secrets replaced.
func failureLines(text string, secrets []string) []string {
	text = agent.MaskSecrets(text, secrets)
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
	lines = lines[max(0, len(lines)-telemetry.MaxFailureLines):]
	for i, line := range lines {
		if line = printable.Line(line); len(line) > maxFailureLine {
			line = strings.ToValidUTF8(line[:maxFailureLine], "") + "..."
		}
		lines[i] = line
	}
	return lines
}
