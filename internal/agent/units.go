package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
)

const (
	readyTimeout  = 5 * time.Second // an engine that is loading a model responds slowly
	retryInterval = 15 * time.Second
	tailLines     = 5 // shown of a failed program, and read for the phase of an engine
	// repairDelay is how long a unit that does not restart by itself stays stopped before the agent starts it: an
	// operator can read the reason meanwhile, and Docker itself may be restarting.
	repairDelay = 30 * time.Second
)

// reconcileUnits applies the desired deployment and checks its units, until ctx ends.
func (a *Agent) reconcileUnits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		}
		runCtx, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.runDeployment(runCtx)
		}()
		select {
		case <-ctx.Done():
		case <-a.changed: // cancels pulls of an outdated deployment
			a.signalChange()
		}
		stop()
		<-done
	}
}

// runDeployment applies the desired deployment, with retries, and then checks its units until ctx
// ends.
func (a *Agent) runDeployment(ctx context.Context) {
	a.mu.Lock()
	d := a.desired
	a.mu.Unlock()
	a.applyWithRetries(ctx, d)
	lostAt := time.Time{}
	for ctx.Err() == nil {
		ready, lost := a.checkUnits(ctx, d)
		switch {
		case !lost:
			lostAt = time.Time{}
		case lostAt.IsZero():
			lostAt = time.Now()
		case time.Since(lostAt) >= repairDelay:
			a.applyWithRetries(ctx, d)
			lostAt = time.Time{}
		}
		interval := a.opts.CheckInterval
		if ready {
			interval = a.opts.ReadyCheckInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

// applyWithRetries applies a deployment, until it succeeds or ctx ends.
func (a *Agent) applyWithRetries(ctx context.Context, d Deployment) {
	failed := 0
	a.repeat(ctx, retryInterval, func() (done bool) {
		err := a.applyDeployment(ctx, d)
		if err != nil && ctx.Err() == nil {
			failed++
			message := d.maskSecrets(err.Error())
			a.log.Error("applying the deployment failed; retrying", "revision", d.Revision, "err", message)
			a.recordFailedStart(message, failed)
		}
		return err == nil
	})
	if ctx.Err() == nil {
		a.log.Info("deployment applied", "revision", d.Revision)
	}
}

// setPhase sets the phase of the machine and its reason.
func (a *Agent) setPhase(phase Phase, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase, a.reason = phase, reason
}

// applyDeployment stops the units that the deployment does not contain, then starts or reloads those
// that it contains.
func (a *Agent) applyDeployment(ctx context.Context, d Deployment) error {
	a.setPhase(PhasePreparing, "")
	running, err := a.opts.Runner.Names(ctx)
	if err != nil {
		return err
	}
	for _, name := range running {
		if !slices.ContainsFunc(d.Units, func(u Unit) bool { return u.Name == name }) {
			if err := a.opts.Runner.Stop(ctx, name); err != nil {
				return fmt.Errorf("stopping %s: %w", name, err)
			}
		}
	}
	for _, u := range d.Units {
		if err := a.startUnit(ctx, u); err != nil {
			return fmt.Errorf("starting %s: %w", u.Name, err)
		}
	}
	a.setPhase(PhaseStarting, "")
	return errors.Join(a.setProxy(d.Proxy), a.removeStale(d))
}

// removeStale removes files of earlier deployments that this one does not contain. They may contain
// secrets, such as those of a controller that now runs on another machine.
func (a *Agent) removeStale(d Deployment) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	current := filesOf(d)
	for len(a.staleFiles) > 0 {
		if !current[a.staleFiles[0]] {
			if err := os.Remove(a.path(a.staleFiles[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		a.staleFiles = a.staleFiles[1:]
	}
	return nil
}

// filesOf returns the paths of the files of a deployment.
func filesOf(d Deployment) map[string]bool {
	paths := map[string]bool{}
	for _, u := range d.Units {
		for path := range u.Files {
			paths[path] = true
		}
	}
	return paths
}

// startUnit writes a unit's files, and starts or reloads the unit.
func (a *Agent) startUnit(ctx context.Context, u Unit) error {
	for _, name := range slices.Sorted(maps.Keys(u.Files)) {
		path := filepath.Join(a.opts.Dir, name)
		old, err := os.ReadFile(path)
		if err == nil && string(old) == u.Files[name] {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return err
		}
		if err := identity.WriteFile(path, []byte(u.Files[name])); err != nil {
			return err
		}
	}
	started, err := a.opts.Runner.Start(ctx, u, a.reportProgress)
	if err == nil && started {
		localClient.CloseIdleConnections()
		a.recordUnitStart(u.Name)
	}
	if err == nil && !started && len(u.Files) > 0 { // the agent may have been stopped between the write and the reload
		err = a.opts.Runner.Reload(ctx, u.Name)
	}
	return err
}

// checkUnits updates the status of the units. ready is true if all are ready, lost if one of them must be
// started (UnitState.NeedsStart).
func (a *Agent) checkUnits(ctx context.Context, d Deployment) (ready, lost bool) {
	units := make([]UnitStatus, len(d.Units))
	phase, reason := PhaseReady, ""
	var first observedUnit // of those that are not ready
	for i, u := range d.Units {
		s, unitPhase, state := a.checkUnit(ctx, u)
		lost = lost || state.NeedsStart
		if units[i] = s; !s.Ready && phase == PhaseReady {
			phase, reason = unitPhase, u.Name+": "+s.problem()
			first = observedUnit{u, state}
		}
	}
	if phase == PhaseReady {
		a.readVersion(ctx, d.Units)
	}
	if ctx.Err() != nil {
		return false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != phase {
		a.log.Info("phase changed", "phase", phase, "reason", reason)
	}
	a.units, a.phase, a.reason = units, phase, reason
	a.recordCheck(phase, first)
	return phase == PhaseReady, lost
}

// checkUnit returns the status of one unit, the phase of a machine with that status, and its observed
// state without secrets.
func (a *Agent) checkUnit(ctx context.Context, u Unit) (s UnitStatus, phase Phase, state UnitState) {
	s.Name = u.Name
	state, err := a.opts.Runner.Inspect(ctx, u, a.linesToRead())
	if err != nil {
		s.Reason = u.maskSecrets(err.Error())
		return s, PhaseFailed, state
	}
	s.Running = state.Running
	if s.Running {
		phase, s.Reason, s.Alerts = readinessPhase(ctx, u, state.Lines)
	} else {
		phase, s.Reason = PhaseFailed, state.Reason
	}
	if s.Ready = phase == PhaseReady; s.Ready {
		state.NeedsStart = false
		return s, phase, state
	}
	s.Reason, state.Reason, state.Lines = u.maskSecrets(s.Reason), u.maskSecrets(state.Reason), u.maskLines(state.Lines)
	if state.Restarts > 0 {
		s.Reason += fmt.Sprintf(", restart count %d", state.Restarts)
	}
	line, separator := errorLine(state.Lines), ": "
	if state.Running { // its last line may have nothing to do with the reason
		line, separator = lastLine(state.Lines), "; last line of its log: "
	}
	if line != "" && len(s.Alerts) == 0 { // alerts are the reason
		s.Reason = strings.TrimPrefix(s.Reason+separator+line, ": ")
	}
	return s, phase, state
}

// readinessPhase returns the phase of a running unit. reason is why it is not ready, or the remark of
// a ready unit; alerts are those of a controller.
func readinessPhase(ctx context.Context, u Unit, lines []string) (phase Phase, reason string, alerts []telemetry.Alert) {
	if u.ReadinessURL == "" {
		return PhaseReady, "", nil
	}
	remark, alerts, err := checkReadyURL(ctx, u.ReadinessURL, u.ReadinessKey)
	if err != nil {
		return phaseOf(lines), err.Error(), alerts
	}
	return PhaseReady, remark, alerts
}

// weightsLogPhrases are phrases in the logs of engines that download or load weights.
var weightsLogPhrases = []string{"download", "fetching", "loading safetensors", "loading weights", "load weight", "loading model", "starting to load model"}

// phaseOf returns the phase of an engine that is not ready, from the last lines of its log.
func phaseOf(lines []string) Phase {
	for _, line := range lines[max(0, len(lines)-tailLines):] {
		line = strings.ToLower(line)
		if slices.ContainsFunc(weightsLogPhrases, func(words string) bool { return strings.Contains(line, words) }) {
			return PhaseWeights
		}
	}
	return PhaseStarting
}

// localClient calls units of this machine. It keeps a connection from one check to the next; startUnit closes
// them, so that a unit that is being replaced does not respond in place of the new one.
var localClient = &http.Client{
	Timeout:       readyTimeout,
	Transport:     &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 4 * defaultCheckInterval},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// checkReadyURL returns nil if a URL of this machine returns 200. remark is the text after "ok" in a
// plain-text response, which balancers send. alerts are those of a controller, also with an error. key is the API key that
// the unit requires.
func checkReadyURL(ctx context.Context, url, key string) (remark string, alerts []telemetry.Alert, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", nil, err
	}
	req.Header.Set("Accept", "application/json, text/plain, */*")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := localClient.Do(req)
	if err != nil {
		return "", nil, errors.New("no response to the readiness probe")
	}
	defer resp.Body.Close()
	text, alerts := plainText(resp), healthAlerts(resp)
	_, _ = io.CopyN(io.Discard, resp.Body, maxReadyBody) // a connection is kept once its response is read
	if resp.StatusCode != http.StatusOK {
		return "", alerts, errors.New(strings.TrimSuffix(fmt.Sprintf("readiness probe returned HTTP status %d: %s", resp.StatusCode, text), ": "))
	}
	if after, ok := strings.CutPrefix(text, "ok"); ok {
		return strings.TrimPrefix(after, "; "), alerts, nil
	}
	return "", alerts, nil
}

// maxReadyBody is the maximum number of bytes read of a response: enough for a few alerts.
const maxReadyBody = 2 << 10

// maxHealthAlerts is the maximum number of bytes read of a controller's alerts, which name what they are about.
const maxHealthAlerts = 64 << 10

// healthAlerts returns the alerts in a JSON response; none in any other response.
func healthAlerts(resp *http.Response) []telemetry.Alert {
	var health telemetry.HealthAlerts
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxHealthAlerts)).Decode(&health); err != nil {
		return nil // the response of an engine has another form
	}
	return health.Alerts
}

// plainText returns the lines of a plain-text response, joined; empty for other content types.
func plainText(resp *http.Response) string {
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "text/plain" {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReadyBody))
	if err != nil {
		return ""
	}
	clean := strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) { // removes escape sequences: the text is printed on terminals
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(text), "?"))
	return strings.ReplaceAll(strings.TrimSpace(clean), "\n", "; ")
}
