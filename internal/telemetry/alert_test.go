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
