package agent

import (
	"context"
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
)

const (
	readyTimeout  = 5 * time.Second // a model that is busy loading answers late
	retryInterval = 15 * time.Second
	tailLines     = 5
	// repairDelay is how long a unit may be lost before it is started anew: its reason is to
	// be read, and Docker itself may be starting again.
	repairDelay = 30 * time.Second
)

// reconcileUnits carries out what is wanted and looks how it does, until ctx ends.
func (a *Agent) reconcileUnits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		}
		life, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.runDeployment(life)
		}()
		select {
		case <-ctx.Done():
		case <-a.changed: // pulls of what is no longer wanted are given up
			a.signalChange()
		}
		stop()
		<-done
	}
}

// runDeployment makes the machine run what is wanted, trying again what fails, and then looks
// on until ctx ends.
func (a *Agent) runDeployment(ctx context.Context) {
	a.mu.Lock()
	d := a.desired
	a.mu.Unlock()
	a.applyWithRetries(ctx, d)
	lostAt := time.Time{}
	a.repeat(ctx, a.opts.Look, func() (done bool) {
		switch lost := a.checkUnits(ctx, d); {
		case !lost:
			lostAt = time.Time{}
		case lostAt.IsZero():
			lostAt = time.Now()
		case time.Since(lostAt) >= repairDelay:
			a.applyWithRetries(ctx, d)
			lostAt = time.Time{}
		}
		return false
	})
}

// applyWithRetries makes the machine run what is wanted, however often that takes.
func (a *Agent) applyWithRetries(ctx context.Context, d Deployment) {
	a.repeat(ctx, retryInterval, func() (done bool) {
		err := a.applyDeployment(ctx, d)
		if err != nil && ctx.Err() == nil {
			a.log.Error("carrying out the deployment", "revision", d.Revision, "err", err)
			a.setPhase(PhaseFailed, err.Error())
		}
		return err == nil
	})
	if ctx.Err() == nil {
		a.log.Info("the deployment is carried out", "revision", d.Revision)
	}
}

// setPhase says how far the machine is.
func (a *Agent) setPhase(phase Phase, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase, a.reason = phase, reason
}

// applyDeployment stops what is not wanted, then starts or tells what is.
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
	return errors.Join(a.setProxy(d.Front), a.removeStale(d))
}

// removeStale removes what earlier deployments had files for and this one has not: they
// may be secrets, such as those of a controller that moved to another machine.
func (a *Agent) removeStale(d Deployment) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := filesOf(d)
	for len(a.staleFiles) > 0 {
		if !wanted[a.staleFiles[0]] {
			if err := os.Remove(a.path(a.staleFiles[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		a.staleFiles = a.staleFiles[1:]
	}
	return nil
}

// filesOf are the paths of the files of a deployment.
func filesOf(d Deployment) map[string]bool {
	paths := map[string]bool{}
	for _, u := range d.Units {
		for path := range u.Files {
			paths[path] = true
		}
	}
	return paths
}

// startUnit writes a unit's files and has it run with them.
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
	started, err := a.opts.Runner.Start(ctx, u, a.setPhase)
	if err == nil && !started && len(u.Files) > 0 { // whether an earlier agent came to tell it is not known
		err = a.opts.Runner.Reload(ctx, u.Name)
	}
	return err
}

// checkUnits sees how the units do; lost says that one of them does not come back by itself.
func (a *Agent) checkUnits(ctx context.Context, d Deployment) (lost bool) {
	units := make([]UnitStatus, len(d.Units))
	phase, reason := PhaseReady, ""
	for i, u := range d.Units {
		s, worst, gone := a.checkUnit(ctx, u)
		lost = lost || gone
		if units[i] = s; !s.Ready && phase == PhaseReady {
			phase, reason = worst, u.Name+": "+s.Reason
		}
	}
	if ctx.Err() != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != phase {
		a.log.Info("phase", "phase", phase, "reason", reason)
	}
	a.units, a.phase, a.reason = units, phase, reason
	return lost
}

// checkUnit sees how one unit does; phase is what the machine is in because of it.
func (a *Agent) checkUnit(ctx context.Context, u Unit) (s UnitStatus, phase Phase, lost bool) {
	s.Name = u.Name
	seen, err := a.opts.Runner.Inspect(ctx, u, tailLines)
	if err != nil {
		s.Reason = err.Error()
		return s, PhaseFailed, seen.Lost
	}
	s.Running = seen.Running
	if s.Running {
		phase, s.Reason = readinessPhase(ctx, u, seen.Lines)
	} else {
		phase, s.Reason = PhaseFailed, seen.Reason
	}
	if s.Ready = phase == PhaseReady; s.Ready {
		return s, phase, false
	}
	if seen.Restarts > 0 {
		s.Reason += fmt.Sprintf(", started again %d times", seen.Restarts)
	}
	if len(seen.Lines) > 0 {
		s.Reason = strings.TrimPrefix(s.Reason+": "+seen.Lines[len(seen.Lines)-1], ": ")
	}
	return s, phase, seen.Lost
}

// readinessPhase says what a unit that runs is busy with, and why it is of no use yet, or what it
// remarks although it is ready.
func readinessPhase(ctx context.Context, u Unit, lines []string) (phase Phase, reason string) {
	if u.Ready == "" {
		return PhaseReady, ""
	}
	remark, err := checkReadyURL(ctx, u.Ready)
	if err != nil {
		return phaseOf(lines), err.Error()
	}
	return PhaseReady, remark
}

// weightsLogPhrases are words of engines' logs while they download or load weights.
var weightsLogPhrases = []string{"download", "fetching", "loading safetensors", "loading weights", "load weight", "loading model", "starting to load model"}

// phaseOf tells from what an engine wrote last what it is busy with.
func phaseOf(lines []string) Phase {
	for _, line := range slices.Backward(lines) {
		line = strings.ToLower(line)
		if slices.ContainsFunc(weightsLogPhrases, func(words string) bool { return strings.Contains(line, words) }) {
			return PhaseWeights
		}
	}
	return PhaseStarting
}

// localClient asks this machine only, and anew each time: a unit may be another by then.
var localClient = &http.Client{
	Timeout:       readyTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// checkReadyURL is nil when a URL of this machine answers 200. The remark is what it says beyond
// "ok" in plain text, as our own programs do.
func checkReadyURL(ctx context.Context, url string) (remark string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := localClient.Do(req)
	if err != nil {
		return "", errors.New("it does not answer yet")
	}
	defer resp.Body.Close()
	text := plainText(resp)
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(strings.TrimSuffix(fmt.Sprintf("it answers %d: %s", resp.StatusCode, text), ": "))
	}
	if remarks, ours := strings.CutPrefix(text, "ok"); ours {
		return strings.TrimPrefix(remarks, "; "), nil
	}
	return "", nil
}

// maxReadyBody bounds what is read of an answer: a few alerts.
const maxReadyBody = 2 << 10

// plainText is the lines of an answer in plain text as one; empty where it is anything else.
func plainText(resp *http.Response) string {
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "text/plain" {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReadyBody))
	if err != nil {
		return ""
	}
	clean := strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) { // it is shown on terminals
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(text), "?"))
	return strings.ReplaceAll(strings.TrimSpace(clean), "\n", "; ")
}
