package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/atomicfile"
)

// The results of a step.
const (
	resultPassed      = "passed"
	resultFailed      = "FAILED"
	resultInterrupted = "interrupted"
	resultSkipped     = "skipped"
)

// stepResult is the result of one step of a rehearsal.
type stepResult struct {
	rehearsalStep
	Result   string        `json:"result"`
	Duration time.Duration `json:"-"`
	Seconds  float64       `json:"seconds"`
	Err      error         `json:"-"`
	Error    string        `json:"error"`
}

// rehearsalReport is the report of a rehearsal as a JSON document. It contains no account ids, addresses
// and secrets.
type rehearsalReport struct {
	Service  string       `json:"service"`
	Passed   bool         `json:"passed"`
	Version  string       `json:"version"`
	Revision string       `json:"revision"`
	Platform string       `json:"platform"`
	Started  time.Time    `json:"started"`
	Regions  []string     `json:"regions"`
	Steps    []stepResult `json:"steps"`
	// CostPerHour is in USD; 0 = unknown, or nothing was planned. MaxCost is the cost until the time limit,
	// EstimatedCost the cost for the time that it took.
	CostPerHour   float64 `json:"cost_per_hour"`
	MaxCost       float64 `json:"max_cost"`
	EstimatedCost float64 `json:"estimated_cost"`
	File          string  `json:"report"`
}

// costUntil returns the cost of the machines for a time, in USD.
func (r *rehearsal) costUntil(d time.Duration) float64 { return r.perHour * d.Hours() }

// costText describes the maximum cost of the rehearsal.
func (r *rehearsal) costText() string {
	limit := r.o.timeout + rehearsalCleanupTimeout
	text := fmt.Sprintf("The rehearsal costs at most $%.2f: $%.4f/h until everything is deleted, %s at the latest (--timeout plus %s). Disks, public addresses and traffic cost cents more.",
		r.costUntil(limit), r.perHour, limit, rehearsalCleanupTimeout)
	if r.unpriced {
		text += " The price of a machine is unknown."
	}
	return text
}

// formatStepTime formats the duration of a step.
func formatStepTime(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// document returns the report.
func (r *rehearsal) document(file string) rehearsalReport {
	v := ownVersion()
	d := rehearsalReport{
		Service: r.of.Name, Passed: true, Version: v.Version, Revision: v.Commit, Platform: v.Platform, Started: r.started.UTC().Truncate(time.Second),
		CostPerHour: r.perHour, MaxCost: r.costUntil(r.o.timeout + rehearsalCleanupTimeout), EstimatedCost: r.costUntil(time.Since(r.started)), File: file,
	}
	for _, region := range r.spec.Regions {
		d.Regions = append(d.Regions, string(region.Name))
	}
	for _, s := range r.results {
		s.Seconds = s.Duration.Round(100 * time.Millisecond).Seconds()
		if s.Err != nil {
			s.Error = r.sanitize(s.Err.Error())
		}
		d.Passed = d.Passed && s.Result == resultPassed
		d.Steps = append(d.Steps, s)
	}
	return d
}

// markdown formats the report for an issue.
func (d rehearsalReport) markdown() string {
	var b strings.Builder
	result := "passed"
	if !d.Passed {
		result = "failed"
	}
	fmt.Fprintf(&b, "# Rehearsal of %s: %s\n\n", d.Service, result)
	fmt.Fprintf(&b, "- skyserve %s %s, %s\n- started %s\n- regions: %s\n", d.Version, d.Revision, d.Platform, d.Started.Format(time.RFC3339), strings.Join(d.Regions, ", "))
	fmt.Fprintf(&b, "- machines: $%.4f/h, about $%.3f for this rehearsal, at most $%.2f\n\n", d.CostPerHour, d.EstimatedCost, d.MaxCost)
	b.WriteString("| step | proves | result | seconds |\n|---|---|---|---|\n")
	for _, s := range d.Steps {
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f |\n", s.Name, s.Proves, s.Result, s.Seconds)
	}
	for _, s := range d.Steps {
		if s.Error != "" {
			fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", s.Name, strings.ReplaceAll(s.Error, "```", "'''"))
		}
	}
	b.WriteString("\nAccount ids, project ids, addresses, account names and secrets are removed.\n")
	return b.String()
}

// writeReport writes the report and prints where it is.
func (r *rehearsal) writeReport() error {
	file := cmp.Or(r.o.report, filepath.Join(r.home.Dir(), "rehearsals", fmt.Sprintf("%s-%s.md", r.of.Name, r.started.UTC().Format("20060102T150405Z"))))
	d := r.document(file)
	if err := atomicfile.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := atomicfile.WriteFile(file, []byte(d.markdown()), 0o600); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if r.format.isDocument() {
		return r.format.writeDocument(r.out, d)
	}
	_, err := fmt.Fprintf(r.out, "%s\nreport: %s\n", d.summary(), file)
	return err
}

// summary is one line about the result.
func (d rehearsalReport) summary() string {
	for _, s := range d.Steps {
		if s.Result == resultFailed || s.Result == resultInterrupted {
			return fmt.Sprintf("rehearsal of %s: step %q %s (%s)", d.Service, s.Name, strings.ToLower(s.Result), s.Proves)
		}
	}
	return fmt.Sprintf("rehearsal of %s: all %d steps passed", d.Service, len(d.Steps))
}

// privateText are the patterns of text that a report must not contain, with their replacements. They are
// compiled at their first use, not in every command.
var privateText = sync.OnceValue(func() []privatePattern {
	return []privatePattern{
		{regexp.MustCompile(`\b(AKIA|ASIA|AROA|AIDA)[A-Z0-9]{8,}`), "[access key]"},
		{regexp.MustCompile(`(?i)\b(bearer|token|signature|password)([ =:]+)\S+`), "$1$2[secret]"},
		{regexp.MustCompile(`[A-Za-z0-9._+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+`), "[email]"},
		{regexp.MustCompile(`(https?://[^\s"'?#]+)[?#][^\s"']*`), "$1"},
		{regexp.MustCompile(`(https?://)[^\s"'/@]+@`), "$1"},
		{regexp.MustCompile(`\b(projects?[/ =:"']+)[a-z0-9][a-z0-9:.-]*`), "$1[project]"},
		{regexp.MustCompile(`\b[0-9]{12}\b`), "[account]"},
		{regexp.MustCompile(`\b[0-9]{1,3}(\.[0-9]{1,3}){3}\b`), "[address]"},
		{regexp.MustCompile(`\[[0-9a-fA-F:]*:[0-9a-fA-F:]+\]`), "[address]"},
	}
})

// privatePattern is a pattern of private text, with its replacement.
type privatePattern struct {
	pattern *regexp.Regexp
	with    string
}

// sanitize removes account ids, names of accounts and projects, addresses and secrets from a message.
func (r *rehearsal) sanitize(text string) string {
	home, _ := os.UserHomeDir()
	for _, known := range []struct{ text, with string }{{r.key, "[secret]"}, {r.home.Dir(), "[state]"}, {r.dir, "[temporary]"}, {home, "~"}} {
		if len(known.text) > 1 {
			text = strings.ReplaceAll(text, known.text, known.with)
		}
	}
	for _, p := range privateText() {
		text = p.pattern.ReplaceAllString(text, p.with)
	}
	for _, name := range slices.Compact([]string{r.o.clouds.project, os.Getenv("GOOGLE_CLOUD_PROJECT")}) {
		if name != "" {
			text = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAllString(text, "[project]")
		}
	}
	return text
}
