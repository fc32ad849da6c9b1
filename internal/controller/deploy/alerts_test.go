package deploy_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/telemetry"
)

// Alerts start at half of a certificate's lifetime, contain the expiry date and the command that renews
// it, and become critical when the certificate has expired.
func TestCertificateAlerts(t *testing.T) {
	const command = "'skyserve up chat.yaml'"
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	machines := func(days int, ids ...string) map[string]time.Time {
		ends := map[string]time.Time{}
		for _, id := range ids {
			ends[id] = began.AddDate(0, 0, days)
		}
		return ends
	}
	year := began.AddDate(1, 0, 0)
	for name, c := range map[string]struct {
		ends deploy.CertificateExpiries
		day  int
		want []string // of each line, in order; none = no alert
	}{
		"unknown":                          {deploy.CertificateExpiries{}, 0, nil},
		"machines, early":                  {deploy.CertificateExpiries{Machines: machines(90, "us-0")}, 44, nil},
		"machines, half of the lifetime":   {deploy.CertificateExpiries{Machines: machines(90, "us-0")}, 46, []string{"warning: certificate machines: the certificate of us-0 is valid until 2026-05-30 and has not been renewed; run " + command}},
		"expiry date":                      {deploy.CertificateExpiries{Machines: machines(90, "us-0")}, 46, []string{"before 2026-05-30"}},
		"many":                             {deploy.CertificateExpiries{Machines: machines(90, "us-4", "us-1", "us-0", "us-2", "us-3")}, 46, []string{"the certificates of us-0, us-1, us-2 and 2 more have not been renewed; the first is valid until 2026-05-30"}},
		"machines, expired":                {deploy.CertificateExpiries{Machines: machines(90, "us-0")}, 91, []string{"critical: certificate machines:"}},
		"controller, early":                {deploy.CertificateExpiries{Controller: year}, 182, nil},
		"controller, half of the lifetime": {deploy.CertificateExpiries{Controller: year}, 184, []string{"warning: certificate controller: its certificates are valid until 2027-03-01"}},
		"controller, command":              {deploy.CertificateExpiries{Controller: year}, 184, []string{"run " + command + " on the machine that has the service's CA key, before 2027-03-01"}},
		"controller, expired":              {deploy.CertificateExpiries{Controller: year}, 366, []string{"critical: certificate controller:"}},
		"operator":                         {deploy.CertificateExpiries{Operator: began.AddDate(0, 0, 90)}, 46, []string{"run 'skyserve connect URL --code CODE' before 2026-05-30"}},
		"operator with the CA":             {deploy.CertificateExpiries{Operator: began.AddDate(0, 0, 90), HasCAKey: true}, 46, nil},
		"both":                             {deploy.CertificateExpiries{Controller: year, Machines: machines(365, "us-0")}, 330, []string{"certificate controller", "certificate machines"}},
	} {
		got := deploy.CertificateAlerts(c.ends, began.AddDate(0, 0, c.day), command)
		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			ok = ok && strings.Contains(got[i].Line(), c.want[i])
		}
		if !ok {
			t.Errorf("%s, day %d: got %v, want %q", name, c.day, got, c.want)
		}
	}
}

// Status shows an alert for machines' certificates that were not renewed.
func TestStatusAlertsAboutCertificates(t *testing.T) {
	end := time.Date(2026, 5, 30, 0, 0, 0, 0, time.UTC)
	ends := func(context.Context) (agent.Status, error) {
		return agent.Status{Phase: agent.PhaseReady, Expires: end}, nil
	}
	_, i := newInspector(t, map[string]func(context.Context) (agent.Status, error){"us-east-1-0": ends})
	i.File = "chat.yaml"
	for left, want := range map[int]int{46: 0, 44: 1} {
		i.Now = func() time.Time { return end.AddDate(0, 0, -left) }
		s, err := i.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Alerts) != want || want > 0 && (s.Alerts[0].Kind != telemetry.AlertCertificate || !strings.Contains(s.Alerts[0].Line(), "us-east-1-0 is valid until 2026-05-30")) {
			t.Errorf("%d days before: %v", left, s.Alerts)
		}
		if s.State != deploy.StateReady {
			t.Errorf("%d days before: a working service is %s", left, s.State)
		}
	}
}

// The controller raises an alert half a year before its own certificate expires, which it cannot renew.
func TestReconcilerAlertsAboutOwnExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		if got := rc.Alerts(); len(got) > 0 {
			t.Errorf("before the first observation: %v", got)
		}
		u.reconcileFor(t, rc, 10*time.Second, always)
		day := 0
		for _, c := range []struct{ day, alerts int }{{0, 0}, {180, 0}, {185, 1}, {400, 1}} {
			time.Sleep(time.Duration(c.day-day) * 24 * time.Hour)
			day = c.day
			got := rc.Alerts()
			if len(got) != c.alerts || c.alerts > 0 && (got[0].Object != "controller" || !strings.Contains(got[0].NextStep, "service.yaml of chat")) {
				t.Errorf("day %d: %v", day, got)
			}
		}
	})
}
