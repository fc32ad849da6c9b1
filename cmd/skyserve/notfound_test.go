package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Every command that takes the name or id of an object exits 1 if there is no such object, and names it. A value that
// service.yaml or the command defines exits 2. For connect --revoke see
// TestRevokeRejectsInvalidArguments.
func TestUnknownNamesExitAsDocumented(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"message":"there is no none-such","code":"not_found"}}`)
	}))
	defer admin.Close()
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("SKYSERVE_HOME", home)
	write(t, home+"/services/chat/service.yaml", rightFile)
	write(t, dir+"/service.yaml", rightFile)
	covered := map[string]bool{}
	for _, tt := range []struct {
		args string
		code int
	}{
		{"status none-such", exitFailed},
		{"top none-such --once", exitFailed},
		{"events none-such", exitFailed},
		{"usage none-such", exitFailed},
		{"plan none-such", exitFailed},
		{"plan backtest none-such", exitFailed},
		{"load none-such", exitFailed},
		{"down none-such --yes", exitFailed},
		{"logs none-such us-0", exitFailed},
		{"logs chat none-such", exitFailed},
		{"backup DIR/backup --service none-such", exitFailed},
		{"connect --list --service none-such", exitFailed},
		{"batch submit DIR/service.yaml --service none-such", exitFailed},
		{"replica list --service none-such", exitFailed},
		{"replica drain none-such", exitFailed},
		{"replica remove none-such", exitFailed},
		{"replica donate none-such", exitFailed},
		{"replica reclaim none-such", exitFailed},
		{"explain none-such --admin ADMIN", exitFailed},
		{"batch list --service none-such", exitFailed},
		{"batch show none-such --target ADMIN", exitFailed},
		{"batch cancel none-such --target ADMIN", exitFailed},
		{"batch download none-such --target ADMIN", exitFailed},
		{"up DIR/service.yaml --replace none-such", exitFailed},

		{"replica add none-such", exitUsage},
		{"logs chat lb/none-such", exitUsage},
		{"replica add us --model none-such", exitUsage},
		{"replica add us --gpu none-such", exitUsage},
		{"events --kind none-such --admin ADMIN", exitUsage},
		{"offers --gpu none-such", exitUsage},
		{"sim run none-such", exitUsage},
		{"sim list none-such", exitUsage},
		{"none-such", exitUsage},
		{"status --none-such", exitUsage},
		{"validate none-such", exitUsage},
		{"doctor none-such", exitUsage},
	} {
		var out, errOut bytes.Buffer
		words := strings.Fields(strings.NewReplacer("DIR", dir, "ADMIN", admin.URL).Replace(tt.args))
		if code := execute(t.Context(), words, &out, &errOut); code != tt.code || !strings.Contains(errOut.String()+out.String(), "none-such") {
			t.Errorf("skyserve %s: exit code %d, want %d, and none-such\n%s", tt.args, code, tt.code, errOut.String())
		}
		if cmd, _, err := newRoot().Find(words); err == nil {
			covered[cmd.CommandPath()] = true
		}
	}
	for _, cmd := range commandsOf(newRoot()) {
		takesName := strings.Contains(cmd.Use, "NAME") || strings.Contains(cmd.Use, "ID") || strings.Contains(cmd.Use, "REGION") || cmd.Flags().Lookup("service") != nil
		switch cmd.CommandPath() {
		case "skyserve init", "skyserve lb": // they name new ones
		case "skyserve gc", "skyserve offers buy": // only a cloud knows
		case "skyserve restore": // it reads the backup first
		case "skyserve replica", "skyserve batch": // their commands
		default:
			if takesName && !cmd.Hidden && !covered[cmd.CommandPath()] {
				t.Errorf("no case of %s", cmd.CommandPath())
			}
		}
	}
}
