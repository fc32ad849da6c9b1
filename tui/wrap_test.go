package tui

import (
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
)

// A reason that is cut continues on lines that no row needs, and a click on them selects its row.
func TestReasonsContinueOnFreeLines(t *testing.T) {
	d := deskIn(t, 80, 24, normal(), "5")
	d.wants("peak of 5.1k uncached prompt", "tokens/s at 12:15; 3 x L4 serve", "local demand")
	for y, want := range map[int]string{6: "aws/us-east-1", 7: "aws/us-east-1", 10: "aws/us-east-1", 11: "aws/ap-northeast-1", 12: "aws/ap-northeast-1"} {
		d := deskIn(t, 80, 24, normal(), "5")
		d.run(d.send(tea.MouseClickMsg{X: 10, Y: y, Button: tea.MouseLeft}))
		if r, ok := d.model.screen.lists[viewPlan].current(); !ok || !strings.HasPrefix(r.id, want) {
			t.Errorf("a click on line %d selects %q, want %s:\n%s", y, r.id, want, d.frame())
		}
	}
	// Without free lines each row has one.
	l := newList()
	l.SetSize(40, 3)
	sh := sheet{noun: "row", columns: []sheetColumn{{column: column{title: "REASON", maxWidth: 100}}}}
	for range 2 {
		sh.rows = append(sh.rows, sheetRow{cells: []cellValue{textCell(strings.Repeat("word ", 20), roleText)}})
	}
	l.setSheet(sh)
	theme := mustTheme(NewTheme(ThemePlain, false))
	if lines := l.Render(&theme); len(lines) != 3 || !strings.HasSuffix(lines[2], "…") {
		t.Errorf("got %q", lines)
	}
}

// Long lines of a log continue on the next line, and are counted as lines of the screen.
func TestLongLinesOfPanelsContinue(t *testing.T) {
	p := panel{kind: panelLogs, title: "logs of us-0", width: 20}
	p.setText("short\nlevel=ERROR msg=\"out of memory\" err="+strings.Repeat("x", 30)+"\nlast", nil)
	theme := mustTheme(NewTheme(ThemePlain, false))
	got := strings.Join(p.Render(&theme, 20, 20), "\n")
	if strings.Contains(got, "…") || strings.ReplaceAll(got, "\n", "") == "" || !strings.Contains(strings.ReplaceAll(got, "\n", ""), strings.Repeat("x", 30)) {
		t.Errorf("got\n%s", got)
	}
	p.scroll(100, 3)
	if lines := p.Render(&theme, 20, 4); lines[len(lines)-1] != "last" {
		t.Errorf("at the end: %q", lines)
	}
}

// Explanations of columns that are wider than the screen continue on the next line.
func TestHelpOfColumnsIsNotCut(t *testing.T) {
	for v, name := range viewNames {
		d := deskIn(t, 80, 24, normal(), viewKeys[v])
		text := strings.Join(strings.Fields(strings.Join(d.model.screen.helpLines(), " ")), " ")
		for _, c := range columnsOf(view(v)) {
			if !strings.Contains(text, c[0]+" "+c[1]) {
				t.Errorf("the help of %s lacks the end of %q", name, c[1])
			}
		}
	}
}

// A plan does not count a draining replica, which the overview counts and the cost includes: the help says so.
func TestHelpOfThePlanSaysWhatCurrentCounts(t *testing.T) {
	s := normal()
	current := s.Plan.Changes[0].Current
	if all := len(findRegion(s, s.Plan.Changes[0].Region).Replicas); all != current+1 {
		t.Fatalf("the plan counts %d of %d replicas, want all but the draining one", current, all)
	}
	text := strings.Join(deskIn(t, 120, 40, s, "5").model.screen.helpLines(), "\n")
	if want := "current, $/h   without replicas that are draining"; !strings.Contains(text, want) {
		t.Errorf("the help lacks %q:\n%s", want, text)
	}
}
