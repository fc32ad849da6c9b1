package main

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// Words and signs that matter have a colour, the text is otherwise unchanged.
func TestPaintText(t *testing.T) {
	for text, want := range map[string]string{
		"us-0  READY  -\nus-1  NOT_READY  x\n": "us-0  <g>READY<>  -\nus-1  <r>NOT_READY<>  x\n",
		"chat  DEGRADED  $0.00/h\n":            "chat  <y>DEGRADED<>  $0.00/h\n",
		"error: no service\nhint: run up\n":    "<r>error:<> no service\n<d>hint: run up<>\n",
		"warning: kv us-0: full\n":             "<y>warning:<> kv us-0: full\n",
		"service.yaml: ok\n":                   "service.yaml: <g>ok<>\n",
		"  + replica us-1\n  ~ balancer lb\n":  "  <g>+<> replica us-1\n  <y>~<> balancer lb\n",
		"  - assumed\n":                        "  <r>-<> assumed\n",
		"local/us  2  +3  5\n":                 "local/us  2  <g>+3<>  5\n",
		"local/us  2  -1  1\n":                 "local/us  2  <r>-1<>  1\n",
		"ALREADY 5 +3\n":                       "ALREADY 5 +3\n",
	} {
		got := string(paintText([]byte(text)))
		marks := strings.NewReplacer(colourRed, "<r>", colourGreen, "<g>", colourYellow, "<y>", colourDim, "<d>", colourNone, "<>")
		if marks.Replace(got) != want {
			t.Errorf("%q: got %q, want %q", text, marks.Replace(got), want)
		}
		if ansi.Strip(got) != text {
			t.Errorf("%q: the text became %q", text, ansi.Strip(got))
		}
	}
}
