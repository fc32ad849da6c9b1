package telemetry

import "testing"

func TestMergeAlertsSortsBySeverity(t *testing.T) {
	warning := Alert{Severity: SeverityWarning, Kind: AlertStore, Object: "store", Message: "is away"}
	critical := Alert{Severity: SeverityCritical, Kind: AlertStore, Object: "store", Message: "no space\nleft", NextStep: "make room"}
	other := Alert{Severity: SeverityWarning, Kind: AlertCertificate, Region: "aws/us-east-1", Object: "lb-0"}
	for _, lists := range [][][]Alert{{{warning, other}, {critical}}, {{critical, warning}, {other, other}}} {
		got := MergeAlerts(lists...)
		if len(got) != 2 || got[0] != critical || got[1] != other {
			t.Errorf("%v: got %v", lists, got)
		}
	}
	if got := MergeAlerts(); got == nil || len(got) != 0 {
		t.Errorf("no alerts: got %v", got)
	}
	if got := critical.Line(); got != "critical: store: no space left; make room" {
		t.Errorf("got %q", got)
	}
}

func TestAlertSubject(t *testing.T) {
	for want, a := range map[string]Alert{
		"store":                     {Kind: AlertStore, Object: "store"},
		"slow us-0":                 {Kind: AlertSlow, Object: "us-0"},
		"failed requests lb-us-0":   {Kind: AlertFailed, Object: "lb-us-0"}, // "failed lb-us-0" is a balancer that has failed
		"rejected requests lb-us-0": {Kind: AlertLimited, Object: "lb-us-0"},
	} {
		if got := a.Subject(); got != want {
			t.Errorf("%s %s: got %q, want %q", a.Kind, a.Object, got, want)
		}
	}
}
