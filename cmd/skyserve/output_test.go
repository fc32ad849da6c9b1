package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/telemetry"
	"skyserve/provision/local"
)

// A document is printed as JSON, as YAML, or as the values of a path in kubectl's or RFC 9535's form.
func TestDocumentFormats(t *testing.T) {
	document := struct {
		Regions []map[string]any `json:"regions"`
	}{[]map[string]any{{"name": "us", "count": 12345678}, {"name": "eu", "count": 2, "empty": nil}}}
	for format, want := range map[string]string{
		"json":                           `{"regions":[{"count":12345678,"name":"us"},{"count":2,"empty":null,"name":"eu"}]}` + "\n",
		"yaml":                           "regions:\n- count: 12345678\n  name: us\n- count: 2\n  empty: null\n  name: eu\n",
		"jsonpath={.regions[*].name}":    "us\neu\n",
		"jsonpath=$.regions[*].name":     "us\neu\n",
		"jsonpath={.regions[0]}":         `{"count":12345678,"name":"us"}` + "\n",
		"jsonpath=.regions[0].count":     "12345678\n",
		"jsonpath=$.regions[?@.count>5]": `{"count":12345678,"name":"us"}` + "\n",
	} {
		f, err := (&outputFlags{output: format}).parse()
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		var out bytes.Buffer
		if err := f.writeDocument(&out, document); err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v, want %q", format, out.String(), err, want)
		}
	}
	for _, bad := range []string{"yml", "jsonpath", "jsonpath={.regions[", "jsonpath=$..", "jsonpath={.x", "jsonpath=.regions[*].name}"} {
		if _, err := (&outputFlags{output: bad}).parse(); err == nil {
			t.Errorf("-o %s is accepted", bad)
		}
	}
}

// encodedByItself is a type with an encoder that prints a former key too.
type encodedByItself struct {
	Cost float64 `json:"cost"`
}

func (e encodedByItself) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"cost":%g,"cost_per_hour":%g}`, e.Cost, e.Cost), nil
}

// Commands that print one document per thing apply the path to each. A path that is written as for a list is an error
// that says so.
func TestPathOfListIsErrorForItems(t *testing.T) {
	for path, want := range map[string]string{"{.kind}": "launch\n", "{[*].kind}": ""} {
		f, err := (&outputFlags{output: outputPath + path}).parse()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		p := &eventPrinter{out: &out, format: f, shown: map[string]bool{}}
		err = p.printReport(&telemetry.EventReport{Events: []telemetry.Event{{ID: "1", Kind: telemetry.EventLaunch}}, Complete: true})
		if out.String() != want {
			t.Errorf("%s: got %q, want %q", path, out.String(), want)
		}
		var exit *exitError
		if want == "" && (!errors.As(err, &exit) || exit.code != exitUsage || exit.hint != "the path is applied to each document: write jsonpath='{.kind}'") {
			t.Errorf("%s: got %+v", path, err)
		}
	}
}

// An unknown key of a command that changes nothing is an error of usage, without a word about an action.
func TestUnknownKeyOfItemNamesNoAction(t *testing.T) {
	f, err := (&outputFlags{output: outputPath + "{.kinds}"}).parse()
	if err != nil {
		t.Fatal(err)
	}
	event, batch := telemetry.Event{ID: "1", Kind: telemetry.EventLaunch}, &batchAnswer{}
	for command, err := range map[string]error{
		"events":     (&eventPrinter{out: io.Discard, format: f, shown: map[string]bool{}}).printReport(&telemetry.EventReport{Events: []telemetry.Event{event}, Complete: true}),
		"batch show": (&batchOptions{format: f}).printBatch(batch, io.Discard),
	} {
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != exitUsage || !strings.Contains(err.Error(), "kinds: unknown key") || strings.Contains(exit.hint, "action") {
			t.Errorf("%s: got %+v", command, err)
		}
	}
}

// A path with a key that no document of the command has is an error, which lists the keys. A key that is absent now
// selects nothing.
func TestUnknownKeysOfPathsAreErrors(t *testing.T) {
	type replica struct {
		ID     string     `json:"id"`
		Reason string     `json:"reason,omitempty"`
		Since  *time.Time `json:"since,omitempty"`
	}
	type status struct {
		Name     string             `json:"name"`
		Replicas []replica          `json:"replicas"`
		Leader   *replica           `json:"leader,omitempty"`
		Prices   map[string]float64 `json:"prices,omitempty"`
		Rows     []encodedByItself  `json:"rows"`
		Any      any                `json:"any,omitempty"`
	}
	full := status{Name: "chat", Replicas: []replica{{ID: "us-0"}}, Rows: []encodedByItself{{2}}}
	for _, c := range []struct {
		document  any
		path      string
		want, err string
	}{
		{full, "{.replicas[*].reason}", "", ""},
		{full, "{.leader.id}", "", ""},
		{full, "{.prices.H100}", "", ""},
		{full, "{.replicas[7].id}", "", ""},
		{full, "{.any.thing}", "", ""},
		{full, "{.replicas[*].since}", "", ""},
		{full, "{.rows[*].cost_per_hour}", "2\n", ""},
		{status{}, "{.rows[*].cost_per_hour}", "", ""},
		{status{}, "{.replicas[*].id}", "", ""},
		{full, "{.replicas[?@.id=='eu-0'].reason}", "", ""},
		{full, "$..id", "us-0\n", ""},
		{[]replica{}, "{[*].reason}", "", ""},
		{map[string]any{"service": "chat", "files": []replica{}}, "{.files[*].id}", "", ""},

		{full, "{.replica}", "", "replica: unknown key: must be one of any, leader, name, prices, replicas, rows"},
		{full, "{.replicas[*].state}", "", "state: unknown key: must be one of id, reason, since"},
		{&status{}, "{.replicas[*].state}", "", "state: unknown key: must be one of id, reason, since"},
		{full, "$['replicas'][0]['id','state']", "", "state: unknown key: must be one of id, reason, since"},
		{full, "{.leader.state}", "", "state: unknown key: must be one of id, reason, since"},
		{full, "{.rows[*].cots}", "", "cots: unknown key: must be one of cost, cost_per_hour"},
		{full, "{.replicas.id}", "", "id: a list or a value has no keys; [*] selects all elements of a list"},
		{full, "{.name.first}", "", "first: a list or a value has no keys"},
		{full, "{.replicas[*].since.id}", "", "id: a list or a value has no keys"},
		{replica{}, "{[*].id}", "", "id: a list or a value has no keys"},
		{full, "{.replicas[?@.id=='us-0'].state}", "", "state: unknown key"},
		{[]replica{}, "{.id}", "", "id: a list or a value has no keys"},
		{map[string]any{"service": "chat", "files": []replica{}}, "{.stopped}", "", "stopped: unknown key: must be one of files, service"},
		{map[string]any{"service": "chat", "files": []replica{}}, "{.files[*].state}", "", "state: unknown key: must be one of id, reason, since"},
	} {
		f, err := (&outputFlags{output: outputPath + c.path}).parse()
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		var out bytes.Buffer
		var exit *exitError
		err = f.writeDocument(&out, c.document)
		switch {
		case c.err == "" && err != nil, out.String() != c.want:
			t.Errorf("%s: got %q, %v, want %q", c.path, out.String(), err, c.want)
		case c.err != "" && (!errors.As(err, &exit) || exit.code != exitUsage || !strings.HasPrefix(err.Error(), "-o jsonpath="+c.path+": "+c.err)):
			t.Errorf("%s: got %v, want %s", c.path, err, c.err)
		}
	}
	f, err := (&outputFlags{output: "jsonpath={.stoped}"}).parse()
	if err != nil {
		t.Fatal(err)
	}
	var exit *exitError // after an action, exit code 2 would claim that nothing was changed
	if err := f.writeResult(io.Discard, "chat", map[string]any{"stopped": 3}); !errors.As(err, &exit) || exit.code != exitFailed || exit.hint != "the action itself is done; did you mean 'stopped'?" {
		t.Errorf("the result of an action: %v", err)
	}
}

// Shells complete services, replicas, regions, models and formats without a network.
func TestCompletions(t *testing.T) {
	hostileService(t, "http://127.0.0.1:1")
	write(t, filepath.Join(homeOf(t), "services", "other", "service.yaml"), rightFile)
	for _, c := range []struct {
		args string
		want []string
	}{
		{"status |", []string{"chat", "other"}},
		{"top |", []string{"chat", "other"}},
		{"down |", []string{"chat", "other"}},
		{"logs |", []string{"chat", "other"}},
		{"logs chat |", []string{"controller", "lb/us", "us-0"}},
		{"replica drain --service chat |", []string{"us-0"}},
		{"replica drain --service chat us-0 |", nil},
		{"replica remove --service nobody |", nil},
		{"replica add --service other |", []string{"local/us", "local/eu"}},
		{"replica add --service other --model |", []string{"llama", "small"}},
		{"replica list --service |", []string{"chat", "other"}},
		{"explain --service |", []string{"chat", "other"}},
		{"backup chat.backup --service |", []string{"chat", "other"}},
		{"plan backtest --service |", []string{"chat", "other"}},
		{"logs --service chat |", []string{"controller", "lb/us", "us-0"}},
		{"logs --service chat us-0 |", nil},
		{"logs nobody |", nil},
		{"replica add --service other --gpu |", []string{"L4"}},
		{"events other --region |", []string{"local/us", "local/eu"}},
		{"load other --model |", []string{"llama", "small"}},
		{"load other --clients |", []string{"us=", "eu="}},
		{"load --service other --clients us=2,|", []string{"us=2,us=", "us=2,eu="}},
		{"plan other --survive |", []string{"local/us", "local/eu", "any"}},
		{"plan backtest --service other --survive |", []string{"local/us", "local/eu", "any"}},
		{"forecast --region |", nil}, // the service is not known
		{"up FILE --replace |", []string{"lb-us-0", "us-0"}},
		{"offers --capacity |", []string{"reserved", "on_demand", "spot", "flex_start"}},
		{"usage --by |", []string{"key", "tenant", "model", "region"}},
		{"lb --order |", []string{"fcfs", "edf", "pf", "dpa"}},
		{"replica list -o |", []string{"text", "wide", "name", "json", "yaml", "jsonpath="}},
	} {
		var out, errOut bytes.Buffer
		words := strings.Fields(strings.ReplaceAll(strings.TrimSuffix(c.args, "|"), "FILE", filepath.Join(homeOf(t), "services", "chat", "service.yaml")))
		if strings.HasSuffix(c.args, " |") {
			words = append(words, "")
		}
		execute(context.Background(), append([]string{"__complete"}, words...), &out, &errOut)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := strings.Join(lines[:len(lines)-1], " "); got != strings.Join(c.want, " ") {
			t.Errorf("skyserve %s: got %q, want %q\n%s", c.args, got, c.want, errOut.String())
		}
	}
}

// The scenarios that 'sim list' lists are completed, those of BF-IO and SageServe too.
func TestListedScenariosAreCompleted(t *testing.T) {
	var listed, out, errOut bytes.Buffer
	execute(context.Background(), []string{"sim", "list", "-o", "name"}, &listed, &errOut)
	execute(context.Background(), []string{"__complete", "sim", "run", "fig8a", ""}, &out, &errOut)
	completed := strings.Fields(out.String())
	for _, name := range strings.Fields(listed.String()) {
		if slices.Contains(completed, name) != (name != "fig8a") {
			t.Errorf("after fig8a, %s is completed: %t\n%s", name, name == "fig8a", errOut.String())
		}
	}
}

// Every command that takes the region of a cloud completes it, and a flag that names a service completes it everywhere.
func TestCompletionsAreComplete(t *testing.T) {
	for _, cmd := range commandsOf(newRoot()) {
		for _, name := range []string{"region", "service", "model", "output"} {
			f := cmd.Flags().Lookup(name)
			if f == nil || slices.Contains(completesNothing, cmd.CommandPath()+" --"+name) {
				continue
			}
			if _, exists := cmd.GetFlagCompletionFunc(name); !exists {
				t.Errorf("%s --%s: is not completed", cmd.CommandPath(), name)
			}
		}
	}
}

// completesNothing are flags whose values no file on this machine has: names that the command itself gives, or that
// are in its input.
var completesNothing = []string{"skyserve engine --model", "skyserve lb --model", "skyserve lb --region", "skyserve sim calibrate --model"}

// status --exit-code fails for a service that is not ready or has a critical alert.
func TestStatusExitCode(t *testing.T) {
	warning := []telemetry.Alert{{Severity: telemetry.SeverityWarning}}
	critical := append(warning, telemetry.Alert{Severity: telemetry.SeverityCritical})
	for _, c := range []struct {
		status deploy.ServiceStatus
		want   bool
	}{
		{deploy.ServiceStatus{State: deploy.StateReady}, true},
		{deploy.ServiceStatus{State: deploy.StateReady, Alerts: warning}, true},
		{deploy.ServiceStatus{State: deploy.StateReady, Alerts: critical}, false},
		{deploy.ServiceStatus{State: deploy.StateDegraded}, false},
	} {
		if got := isWell(&c.status); got != c.want {
			t.Errorf("%s with alerts %v: got %v", c.status.State, c.status.Alerts, got)
		}
	}
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	write(t, filepath.Join(homeOf(t), "services", "chat", "service.yaml"), rightFile)
	for args, want := range map[string]int{"status": exitOK, "status --exit-code": exitFailed, "status --exit-code --watch": exitUsage} {
		var out, errOut bytes.Buffer
		if code := execute(context.Background(), strings.Fields(args), &out, &errOut); code != want {
			t.Errorf("skyserve %s: exit %d, want %d\n%s%s", args, code, want, out.String(), errOut.String())
		}
	}
	var names, bare bytes.Buffer
	execute(context.Background(), []string{"replica", "list", "-o", "name"}, &names, &names)
	execute(context.Background(), []string{"replica", "list", "-o", "wide", "--no-headers"}, &bare, &bare)
	if got := strings.Fields(names.String()); strings.Join(got, " ") != "us-0 eu-0" && strings.Join(got, " ") != "eu-0 us-0" {
		t.Errorf("replica list -o name: %q", names.String())
	}
	if strings.Contains(bare.String(), "REGION") || strings.Count(bare.String(), "\n") != 2 {
		t.Errorf("replica list --no-headers: %q", bare.String())
	}
}

// homeOf returns the state directory of the test.
func homeOf(t *testing.T) string {
	t.Helper()
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	return home.Dir()
}

// A list is printed as a table, with more columns, as names, or as its document; a dash stands for an empty cell.
func TestListFormats(t *testing.T) {
	l := list{titles: []string{"ID", "QUEUED", "REASON"}, wide: []string{"URL"}, rows: []listRow{
		{"us-0", []string{"us-0", "5", ""}, []string{"http://a"}}, {"us-11", []string{"us-11", "12", "slow"}, []string{""}}, {"", []string{"all", "17", ""}, []string{""}},
	}}
	document := []map[string]any{{"id": "us-0"}, {"id": "us-11"}}
	for _, c := range []struct {
		flags outputFlags
		want  string
	}{
		{outputFlags{output: "text"}, "ID     QUEUED  REASON\nus-0        5  -\nus-11      12  slow\nall        17  \n"},
		{outputFlags{output: "table"}, "ID     QUEUED  REASON\nus-0        5  -\nus-11      12  slow\nall        17  \n"},
		{outputFlags{output: "wide"}, "ID     QUEUED  REASON  URL\nus-0        5  -       http://a\nus-11      12  slow    -\nall        17          \n"},
		{outputFlags{output: "text", noHeaders: true}, "us-0    5  -\nus-11  12  slow\nall    17  \n"},
		{outputFlags{output: "name"}, "us-0\nus-11\n"},
		{outputFlags{output: "json"}, `[{"id":"us-0"},{"id":"us-11"}]` + "\n"},
		{outputFlags{output: "yaml"}, "- id: us-0\n- id: us-11\n"},
		{outputFlags{output: "jsonpath={[*].id}"}, "us-0\nus-11\n"},
	} {
		format, err := c.flags.parse()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := format.write(&out, document, l); err != nil || out.String() != c.want {
			t.Errorf("%+v: got\n%swant\n%s(%v)", c.flags, out.String(), c.want, err)
		}
	}
}

// The result of an action is printed as a document or as the name of what was changed.
func TestResultFormats(t *testing.T) {
	for output, want := range map[string]string{
		"name": "chat\n", "json": `{"service":"chat","stopped":3}` + "\n", "yaml": "service: chat\nstopped: 3\n", "jsonpath={.stopped}": "3\n",
	} {
		format, err := (&outputFlags{output: output, formats: resultFormats}).parse()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := format.writeResult(&out, "chat", map[string]any{"service": "chat", "stopped": 3}); err != nil || out.String() != want {
			t.Errorf("-o %s: got %q (%v), want %q", output, out.String(), err, want)
		}
	}
	if _, err := (&outputFlags{output: "wide", formats: resultFormats}).parse(); err == nil {
		t.Error("-o wide is accepted for a result")
	}
}

// Every command that acts on a service accepts --service, and NAME only where the service is its only object.
func TestServiceIsNamedTheSameEverywhere(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		_, arguments, _ := strings.Cut(cmd.Use, " ")
		if strings.HasPrefix(arguments, "[NAME") && cmd.Name() != "init" && cmd.Name() != "list" && cmd.Flags().Lookup("service") == nil {
			t.Errorf("%s %s has no --service", cmd.CommandPath(), arguments)
		}
		if strings.Contains(arguments, " [NAME]") || strings.Contains(arguments, "NAME FILE") {
			t.Errorf("%s %s: the service is not its object, use --service", cmd.CommandPath(), arguments)
		}
	}
	visit(newRoot())
	for _, name := range []string{"explain", "backup", "restore", "connect", "replica list", "batch list", "logs"} {
		cmd, _, err := newRoot().Find(strings.Fields(name))
		if err != nil || cmd.Flag("service") == nil {
			t.Errorf("%s has no --service (%v)", name, err)
		}
	}
}

// Every command that lists things has the same formats and --no-headers; the others print documents.
func TestOutputFlagsAreTheSameEverywhere(t *testing.T) {
	lists := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		o := cmd.Flags().Lookup("output")
		if o == nil || o.Shorthand != "o" {
			return
		}
		if strings.HasPrefix(o.Usage, "output format: text, wide, name, json, yaml") {
			lists[cmd.CommandPath()] = true
			if cmd.Flags().Lookup("no-headers") == nil {
				t.Errorf("%s has no --no-headers", cmd.CommandPath())
			}
		}
		if !strings.Contains(o.Usage, "json") || !strings.Contains(o.Usage, "yaml") || !strings.Contains(o.Usage, "jsonpath=PATH") {
			t.Errorf("%s lacks a format of documents: %s", cmd.CommandPath(), o.Usage)
		}
		if o.DefValue != "text" && cmd.CommandPath() != "skyserve sim calibrate" {
			t.Errorf("%s prints %s without -o", cmd.CommandPath(), o.DefValue)
		}
	}
	visit(newRoot())
	for _, name := range []string{"status", "replica list", "events", "offers", "offers blocks", "batch list", "usage", "connect", "config", "gc", "sim list", "plan", "forecast"} {
		if !lists["skyserve "+name] {
			t.Errorf("%s lacks the formats of lists", name)
		}
	}
}
