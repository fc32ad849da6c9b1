package tui

import (
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// The overview shows an alert of every kind: the number with the sign of the severity in the header, and the alert with
// its sign, object, message and next step in the panel. The other views have it in the second line.
func TestEveryAlertIsShown(t *testing.T) {
	for _, kind := range telemetry.AlertKinds() {
		for severity, count := range map[telemetry.Severity]string{telemetry.SeverityWarning: "▲ 1 alert", telemetry.SeverityCritical: "✗ 1 critical"} {
			d := newDesk(t, 140, 40, normal())
			d.fetch.snapshot.Alerts = []telemetry.Alert{{Severity: severity, Kind: kind, Region: "aws/us-east-1", Object: "its-object", Message: "the message of " + kind, NextStep: "the next step"}}
			d.poll(time.Second)
			lines := strings.Split(d.frame(), "\n")
			sign, _, _ := strings.Cut(count, " ")
			subject := d.fetch.snapshot.Alerts[0].Subject()
			if !strings.Contains(lines[0], count) {
				t.Errorf("%s, %s: the header is\n%s", kind, severity, lines[0])
			}
			panel := strings.Join(lines[1:], "\n")
			for _, want := range []string{sign + " " + subject, "the message of " + kind, "the next step"} {
				if !strings.Contains(panel, want) {
					t.Errorf("%s, %s: the panel has no %q:\n%s", kind, severity, want, panel)
				}
			}
			d.press("2")
			if line := string(severity) + ": " + subject + ": the message of " + kind; !strings.Contains(d.frame(), line) {
				t.Errorf("%s, %s: another view has no %q:\n%s", kind, severity, line, d.frame())
			}
		}
	}
}

// The colours of the header and of the panel are those of the severity.
func TestAlertsHaveColours(t *testing.T) {
	theme := mustTheme(NewTheme(ThemeDark, true))
	for severity, want := range map[telemetry.Severity]paint{telemetry.SeverityWarning: theme.warn, telemetry.SeverityCritical: theme.alarm} {
		s := &screen{theme: theme, snapshot: &telemetry.Snapshot{Alerts: []telemetry.Alert{{Severity: severity, Kind: telemetry.AlertQueue, Object: "lb-0", Message: "m"}}}}
		if s.alertCount().paint != want || s.alertNote().paint != want {
			t.Errorf("%s: %+v, %+v", severity, s.alertCount(), s.alertNote())
		}
		role := map[telemetry.Severity]role{telemetry.SeverityWarning: roleWarn, telemetry.SeverityCritical: roleBad}[severity]
		if p := s.problems(); len(p) != 1 || p[0].role != role {
			t.Errorf("%s: %+v", severity, p)
		}
	}
}
