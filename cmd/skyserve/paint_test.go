package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// marks shows colours as letters in brackets.
var marks = strings.NewReplacer(colourRed, "<r>", colourGreen, "<g>", colourYellow, "<y>", colourDim, "<d>", colourNone, "<>")

// onTerminal returns what print prints on a terminal with colours.
func onTerminal(t *testing.T, print func(w io.Writer)) string {
	t.Helper()
	t.Setenv("NO_COLOR", "")
	var out bytes.Buffer
	w := printable.NewWriter(&painter{out: &out})
	print(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Cells of the columns STATE and CHANGE have a colour. Other cells have none, even if they contain the same words.
func TestListsPaintCells(t *testing.T) {
	l := list{titles: []string{"ID", titleState, titleChange, "REASON"}, rows: []listRow{
		{name: "READY", cells: []string{"READY", "READY", "+3", "FAILED: READY"}},
		{name: "us-10", cells: []string{"us-10", "NOT_READY", "-1", "READY +3"}},
		{name: "us-2", cells: []string{"us-2", "DRAINING", "0", "error: x"}},
		{name: "us-3", cells: []string{"us-3", "DONATED", "+0", "\x1b[31mred"}},
	}}
	drawn := onTerminal(t, func(w io.Writer) {
		if err := (outputFormat{kind: outputText}).write(w, nil, l); err != nil {
			t.Error(err)
		}
		io.WriteString(w, "READY  error: FAILED +3\n") // a line of a log
	})
	want := `ID     STATE      CHANGE  REASON
READY  <g>READY<>          <g>+3<>  FAILED: READY
us-10  <r>NOT_READY<>      <r>-1<>  READY +3
us-2   <y>DRAINING<>        0  error: x
us-3   DONATED        +0  red
READY  error: FAILED +3
`
	if got := marks.Replace(drawn); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var plain bytes.Buffer
	if err := (outputFormat{kind: outputText}).write(&plain, nil, l); err != nil || ansi.Strip(drawn) != plain.String()+"READY  error: FAILED +3\n" {
		t.Errorf("without colours it is %q, in a pipe %q (%v)", ansi.Strip(drawn), plain.String(), err)
	}
}

// The lines of a diff and the results of checks are cells of columns without titles.
func TestRowsWithoutTitlesArePainted(t *testing.T) {
	drawn := onTerminal(t, func(w io.Writer) {
		table := printable.NewTable(w)
		table.HideTitles(titleChange)
		table.Rowf("  %s replica\t%s\t+ not a change", "+", "us-1")
		table.Rowf("  %s balancer\t%s\tREADY", "~", "lb")
		table.HideTitles(titleResult)
		table.Rowf("FAIL\taws\tok")
		table.HideTitles()
		table.Rowf("\nQUOTA\tUSED")
		table.Rowf("ok\t3")
		if err := table.Flush(); err != nil {
			t.Error(err)
		}
	})
	want := `  <g>+ replica<>   us-1  + not a change
  <y>~ balancer<>  lb    READY
<r>FAIL<>          aws   ok

QUOTA  USED
ok        3
`
	if got := marks.Replace(drawn); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Messages have a colour for their label alone, and nothing that they quote can change it.
func TestMessagesPaintLabels(t *testing.T) {
	drawn := onTerminal(t, func(w io.Writer) {
		printMessage(w, labelError, "no service %s", "error: READY\x1b[32m")
		printMessage(w, labelHint, "run up")
		printMessage(w, string(telemetry.SeverityCritical), "kv us-0: full")
		printMessage(w, string(telemetry.SeverityWarning), "kv us-0: full")
		if err := printValid(w, "ok"); err != nil {
			t.Error(err)
		}
	})
	want := "<r>error:<> no service error: READY\n<d>hint:<> run up\n<r>critical:<> kv us-0: full\n<y>warning:<> kv us-0: full\nok: <g>ok<>\n"
	if got := marks.Replace(drawn); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Every state that needs an operator's eye has a colour.
func TestStatesHaveColours(t *testing.T) {
	for _, state := range []service.ReplicaState{
		service.StatePending, service.StateProvisioning, service.StateStarting, service.StateReady, service.StateNotReady,
		service.StateDraining, service.StateDonated, service.StateInterrupted, service.StateShuttingDown, service.StateFailed,
	} {
		if stateColours[string(state)] == "" && state != service.StateDonated {
			t.Errorf("%s has no colour", state)
		}
	}
	for _, state := range []deploy.ServiceState{deploy.StateReady, deploy.StateStarting, deploy.StateDegraded, deploy.StateDown, deploy.StateUnknown} {
		if stateColours[string(state)] == "" {
			t.Errorf("%s has no colour", state)
		}
	}
	if stateColours[string(service.StateUnreachable)] != colourRed {
		t.Error("an unreachable balancer is not red")
	}
}

// A screen that is redrawn has the colours of one that is printed.
func TestRedrawnScreenHasColours(t *testing.T) {
	page := func(w io.Writer) error {
		printMessage(w, labelWarning, "READY")
		table := printable.NewTable(w)
		table.Row("ID", titleState)
		table.Row("us-0", "FAILED")
		return table.Flush()
	}
	drawn := onTerminal(t, func(w io.Writer) {
		if err := redrawScreen(w, page); err != nil {
			t.Error(err)
		}
	})
	if want := clearScreen + "<y>warning:<> READY\nID    STATE\nus-0  <r>FAILED<>\n"; marks.Replace(drawn) != want {
		t.Errorf("got %q, want %q", marks.Replace(drawn), want)
	}
}
