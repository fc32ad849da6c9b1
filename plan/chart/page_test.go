package chart

import (
	"strings"
	"testing"
)

func TestValuesAreEscaped(t *testing.T) {
	var p Page
	p.Put(`<a title="{}">{}</a>`, `"><script>`, "1 < 2 & 3")
	p.PutIf(false, "never {}", 1)
	p.PutIf(true, "<b>{}</b>", 2.5)
	want := `<a title="&#34;&gt;&lt;script&gt;">1 &lt; 2 &amp; 3</a><b>2.5</b>`
	if got := p.text.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPutPanicsOnMissingValues(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no error was returned")
		}
	}()
	var p Page
	p.Put("{} {}", 1)
}

// A page has its title, all styles and its end.
func TestPageIsComplete(t *testing.T) {
	var b strings.Builder
	p := NewPage("a <title>", ".own { }\n")
	p.PutLegend(LegendEntry{Class: "line", Text: "a line"}, LegendEntry{Class: "fault", Number: 3, Text: "a fault"}, LegendEntry{Text: "words"})
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<title>a &lt;title&gt;</title>", ".own { }\n</style>", `<path class="line" d="M0 5H26"/>`, `<b class="badge fault">3</b>a fault`, "<span>words</span>", "</body>\n</html>\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
}
