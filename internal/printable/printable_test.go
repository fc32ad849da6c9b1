package printable_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"skyserve/internal/printable"
)

// hostile contains texts that manipulate a terminal or its reader, with the results of Text and
// Line.
var hostile = []struct{ name, in, text, line string }{
	{"plain", "us-0 READY $1.20/h ~100%", "us-0 READY $1.20/h ~100%", "us-0 READY $1.20/h ~100%"},
	{"lines", "a\tb\nc\n", "a\tb\nc\n", "a b c "},
	{"clear screen", "a\x1b[2Jb", `a\x1b[2Jb`, "a[2Jb"},
	{"colour", "\x1b[1;31mERROR\x1b[0m: \x1b[38:5:196mx\x1b[m", "ERROR: x", "ERROR: x"},
	{"title", "\x1b]0;owned\x07", `\x1b]0;owned\x07`, "]0;owned"},
	{"link", "\x1b]8;;http://evil\x1b\\click", `\x1b]8;;http://evil\x1b\click`, "]8;;http://evil\\click"},
	{"terminal response", "\x1b[c\x1b[6n\x05", `\x1b[c\x1b[6n\x05`, "[c[6n"},
	{"colour in colour", "\x1b[\x1b[31m31m", `\x1b[31m`, "[31m"},
	{"colour without end", "\x1b[31", `\x1b[31`, "[31"},
	{"colour too long", "\x1b[" + strings.Repeat("1;", 40) + "m", `\x1b[` + strings.Repeat("1;", 40) + "m", "[" + strings.Repeat("1;", 40) + "m"},
	{"eight bits", "\u009b2J\u009d0;x\u009c", `\u009b2J\u009d0;x\u009c`, "2J0;x"},
	{"eight bits raw", "\x9b2J", "\ufffd2J", "?2J"},
	{"overwrite", "FAILED\rREADY ", `FAILED\x0dREADY `, "FAILED READY "},
	{"carriage return at the end", "a\r", `a\x0d`, "a "},
	{"line ends of Windows", "a\r\nb\r\r\n", "a\nb\\x0d\n", "a  b   "},
	{"back", "secure\b\b\b\b\b\binsec", `secure\x08\x08\x08\x08\x08\x08insec`, "secureinsec"},
	{"other breaks", "a\vb\fc\x00d\x7fe\u0085f", `a\x0bb\x0cc\x00d\u007fe\u0085f`, "abcdef"},
	{"turned", "us\u202e0-ue\u202c \u2066x\u2069", `us\u202e0-ue\u202c \u2066x\u2069`, "us0-ue x"},
	{"not seen", "us\u200b-\u2060\ufeff0\u00ad\u180e\u115f\u3164\u034f", `us\u200b-\u2060\ufeff0\u00ad\u180e\u115f\u3164\u034f`, "us-0"},
	{"tags", "us\U000e0041\U000e007f\U000e0101", `us\udb40\udc41\udb40\udc7f\udb40\udd01`, "us"},
	{"separators", "a\u2028b\u2029c\u00a0d", `a\u2028b\u2029c` + "\u00a0d", "a b c d"},
	{"private", "\ue000\U0010ffff", `\ue000\udbff\udfff`, ""},
	{"not UTF-8", "a\xffb\xe2\x82", "a\ufffdb\ufffd\ufffd", "a?b??"},
	{"words of the world", "模型 Größe é e\u0301 ⚠\ufe0f", "模型 Größe é e\u0301 ⚠\ufe0f", "模型 Größe é e\u0301 ⚠"},
	{"family", "👩\u200d👧", `👩\u200d👧`, "👩👧"},
}

func TestTextAndLine(t *testing.T) {
	for _, c := range hostile {
		if got := printable.Text(c.in); got != c.text {
			t.Errorf("%s: Text(%q) is %q, want %q", c.name, c.in, got, c.text)
		}
		if got := printable.Line(c.in); got != c.line {
			t.Errorf("%s: Line(%q) is %q, want %q", c.name, c.in, got, c.line)
		}
	}
}

// FuzzText checks the documented properties of Text, Line and Writer for any text.
func FuzzText(f *testing.F) {
	for _, c := range hostile {
		f.Add(c.in, 3)
	}
	f.Fuzz(func(t *testing.T, s string, cut int) {
		text, line := printable.Text(s), printable.Line(s)
		harmless(t, text, "\n\t")
		harmless(t, line, "")
		if again := printable.Text(text); again != text {
			t.Errorf("Text of %q is %q", text, again)
		}
		if again := printable.Line(line); again != line {
			t.Errorf("Line of %q is %q", line, again)
		}
		var out bytes.Buffer
		w := printable.NewWriter(&out)
		cut = min(max(cut, 0), len(s))
		for _, part := range []string{s[:cut], s[cut:]} {
			if n, err := io.WriteString(w, part); n != len(part) || err != nil {
				t.Fatalf("wrote %d of %q: %v", n, part, err)
			}
		}
		if err := w.Flush(); err != nil || out.String() != text {
			t.Errorf("written in two parts %q, want %q (%v)", out.String(), text, err)
		}
		keepsJSON(t, s)
	})
}

// harmless fails the test unless text is valid UTF-8. It must contain only the allowed control
// characters, and no character that changes the direction of others or hides them.
func harmless(t *testing.T, text, allowed string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%q is not UTF-8", text)
	}
	for _, r := range text {
		switch {
		case strings.ContainsRune(allowed, r):
		case r < 0x20 || r >= 0x7f && r < 0xa0, r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff, r >= 0xe0000 && r <= 0xe0fff:
			t.Errorf("%q holds %U", text, r)
		}
	}
}

// keepsJSON fails the test if Text changes the value of a JSON document.
func keepsJSON(t *testing.T, s string) {
	t.Helper()
	doc, err := json.Marshal(map[string]string{"a": s, s: "b"})
	if err != nil {
		t.Fatal(err)
	}
	var before, after map[string]string
	if err := json.Unmarshal(doc, &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(printable.Text(string(doc))), &after); err != nil {
		t.Fatalf("%s: %v", printable.Text(string(doc)), err)
	}
	for key, v := range before {
		if after[key] != v {
			t.Errorf("%s has the value %q, %s has %q", doc, v, printable.Text(string(doc)), after[key])
		}
	}
}

// Raw output bypasses the sanitising of a Writer, and remains in order with its other output.
func TestRawKeepsOutputOrder(t *testing.T) {
	var out bytes.Buffer
	w := printable.NewWriter(&out)
	_, _ = io.WriteString(w, "50\r")
	_, _ = io.WriteString(printable.Raw(w), "\r\x1b[K")
	_, _ = io.WriteString(w, "\x1b[Kdone\n")
	if want := `50\x0d` + "\r\x1b[K" + `\x1b[Kdone` + "\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if printable.Unwrap(w) != io.Writer(&out) || printable.Unwrap(&out) != io.Writer(&out) || printable.Raw(&out) != io.Writer(&out) {
		t.Error("what is behind a writer is not found")
	}
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriterReturnsErrors(t *testing.T) {
	for _, text := range []string{"plain", "\x1b[2J"} {
		if _, err := io.WriteString(printable.NewWriter(full{}), text); !errors.Is(err, errFull) {
			t.Errorf("writing %q: %v", text, err)
		}
	}
	w := printable.NewWriter(full{})
	_, _ = io.WriteString(w, "\r")
	if err := w.Flush(); !errors.Is(err, errFull) {
		t.Errorf("flushing: %v", err)
	}
}

// Lines of concurrent goroutines are not mixed.
func TestWriterIsSafeForConcurrentUse(t *testing.T) {
	var out bytes.Buffer
	w := printable.NewWriter(&out)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_, _ = io.WriteString(w, "a\x1bb\n")
			}
		})
	}
	wg.Wait()
	if want := strings.Repeat("a\\x1bb\n", 800); out.String() != want {
		t.Error("lines were mixed")
	}
}

func TestTableSanitisesCells(t *testing.T) {
	var out bytes.Buffer
	table := printable.NewTable(&out)
	table.Rowf("ID\tSTATE\tREASON")
	table.Row("us-0\nus-9\tREADY", "\x1b[31mFAILED", "a\xffb\fc\vd")
	table.Rowf("%s\t%v\t%.1f %d", errors.New("x\ty"), []string{"p\nq"}, 1.25, 3)
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	want := `ID               STATE   REASON
us-0 us-9 READY  FAILED  a?bcd
x y              [p q]   1.2 3
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTableAlignsNumbers(t *testing.T) {
	for _, c := range []struct{ name, rows, want string }{
		{"numbers and their titles are right-aligned", "ID,REQUESTS,COST,STATE;a,5,$1.20/h,ok;bc,1234,$20.00/h,-", `
ID  REQUESTS      COST  STATE
a          5   $1.20/h  ok
bc      1234  $20.00/h  -
`},
		{"units, signs, deviations and durations are numbers", "A,B,C,D;5 GiB,+3%,12 ±2 ms,1h20m;120 KiB,-10%,130 ±10 ms,5s", `
      A     B           C      D
  5 GiB   +3%    12 ±2 ms  1h20m
120 KiB  -10%  130 ±10 ms     5s
`},
		{"one word makes a column text; addresses, dates and types are text", "A,B,C,D;5,10.0.0.1,2026-11-26,8xH100;none,10.0.0.12,2026-11-27,1xL4", `
A     B          C           D
5     10.0.0.1   2026-11-26  8xH100
none  10.0.0.12  2026-11-27  1xL4
`},
		{"without a header", "us-0,5;us-11,12", `
us-0    5
us-11  12
`},
		{"unknown values", "A,B,C;x,-,-;y,12,-", `
A   B  C
x   -  -
y  12  -
`},
		{"sections", "A,B;x,1;;LONGER,C;y,word;z,2", `
A  B
x  1

LONGER  C
y       word
z       2
`},
		{"titles only", "A,B", "\nA  B\n"},
	} {
		var out bytes.Buffer
		table := printable.NewTable(&out)
		for row := range strings.SplitSeq(c.rows, ";") {
			table.Row(strings.Split(row, ",")...)
		}
		if err := table.Flush(); err != nil || "\n"+out.String() != c.want {
			t.Errorf("%s: got\n%s\nwant%s (%v)", c.name, out.String(), c.want, err)
		}
	}
}

func BenchmarkWriterPlain(b *testing.B) {
	w := printable.NewWriter(io.Discard)
	line := []byte(strings.Repeat("time=2026-01-01T00:00:00Z level=INFO ", 4) + "\n")
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = w.Write(line)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 16_100_000_000: "16.1 GB", 1 << 63: "9.2 EB"} {
		if got := printable.Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestCountHasTheFormOfItsNumber(t *testing.T) {
	for n, want := range map[int64]string{0: "0 requests", 1: "1 request", 2: "2 requests", 10_000: "10000 requests"} {
		if got := printable.Count(n, "request"); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
	for noun, want := range map[string]string{"key": "2 keys", "entry": "2 entries", "batch": "2 batches", "day": "2 days", "address": "2 addresses"} {
		if got := printable.Count(2, noun); got != want {
			t.Errorf("%s: got %q, want %q", noun, got, want)
		}
	}
}

// screen is a terminal with a number of columns.
type screen struct {
	strings.Builder
	columns int
}

func (s *screen) Columns() int { return s.columns }

// A table that fits keeps its cells on a terminal: unknown columns are omitted first, then the longest texts are cut,
// and never numbers and ids.
func TestTablesFitIntoTerminal(t *testing.T) {
	rows := [][]string{
		{"ID", "STATE", "MODEL", "REASON", "SIZE"},
		{"us-east-1-0123456789", "READY", "meta-llama/Llama-3.1-8B-Instruct", "-", "1234567890123"},
		{"us-east-1-1", "NOT_READY", "m", "-", "1"},
	}
	draw := func(columns int, hide, whole bool) string {
		s := &screen{columns: columns}
		table := printable.NewTable(s)
		if !whole {
			table.Fit(printable.Fitting{})
		}
		if hide {
			table.HideTitles(rows[0]...)
		}
		for _, row := range rows[map[bool]int{true: 1}[hide]:] {
			table.Row(row...)
		}
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		return s.String()
	}
	all := `ID                    STATE      MODEL                             REASON           SIZE
us-east-1-0123456789  READY      meta-llama/Llama-3.1-8B-Instruct  -       1234567890123
us-east-1-1           NOT_READY  m                                 -                   1
`
	for _, tt := range []struct {
		columns     int
		hide, whole bool
		want        string
	}{
		{88, false, false, all},
		{0, false, false, all},
		{20, false, true, all},
		{80, false, false, `ID                    STATE      MODEL                                      SIZE
us-east-1-0123456789  READY      meta-llama/Llama-3.1-8B-Instruct  1234567890123
us-east-1-1           NOT_READY  m                                             1
`},
		{70, false, false, `ID                    STATE      MODEL                            SIZE
us-east-1-0123456789  READY      meta-llama/Llama-3.1-…  1234567890123
us-east-1-1           NOT_READY  m                                   1
`},
		{10, true, false, `us-east-1-0123456789  READY      meta-llama/…  1234567890123
us-east-1-1           NOT_READY  m                         1
`},
	} {
		if got := draw(tt.columns, tt.hide, tt.whole); got != tt.want {
			t.Errorf("%d columns:\n%s\nwant\n%s", tt.columns, got, tt.want)
		}
	}
}

// A table on a terminal omits optional columns, the first ones first, before it cuts a text below its readable width,
// and keeps the columns that stay whole.
func TestTablesOmitOptionalColumns(t *testing.T) {
	rows := [][]string{
		{"TIME", "REGION", "MESSAGE", "REASON"},
		{"2026-11-27 03:00:00", "aws/us-east-1", "launched us-east-1-0 on spot g6.xlarge", "KV memory 82 % used, above 70 %"},
	}
	for columns, want := range map[int]string{
		110: "TIME                 REGION         MESSAGE                                 REASON\n2026-11-27 03:00:00  aws/us-east-1  launched us-east-1-0 on spot g6.xlarge  KV memory 82 % used, above 70 %\n",
		80:  "TIME                 REGION         MESSAGE                     REASON\n2026-11-27 03:00:00  aws/us-east-1  launched us-east-1-0 on s…  KV memory 82 % …\n",
		70:  "TIME                 MESSAGE                     REASON\n2026-11-27 03:00:00  launched us-east-1-0 on s…  KV memory 82 % used,…\n",
		60:  "TIME                 MESSAGE\n2026-11-27 03:00:00  launched us-east-1-0 on spot g6.xlarge\n",
		40:  "TIME                 MESSAGE\n2026-11-27 03:00:00  launched us-east-1-0 on s…\n",
	} {
		s := &screen{columns: columns}
		table := printable.NewTable(s)
		table.Fit(printable.Fitting{Optional: []string{"REGION", "REASON"}, Whole: []string{"TIME"}, Readable: map[string]int{"MESSAGE": 26}})
		for _, row := range rows {
			table.Row(row...)
		}
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		if s.String() != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", columns, s.String(), want)
		}
	}
}

// Rows that a table prints later stay in the columns of the earlier ones, and wider cells widen them if there is room.
func TestTablesKeepColumns(t *testing.T) {
	for columns, want := range map[int]string{
		0:  "A      B       COUNT\nfirst  second      7\nx      y          12\nlongest  y           1\nx        y           1\n",
		24: "A      COUNT\nfirst      7\nx         12\nlongest      1\nx            1\n",
	} {
		s := &screen{columns: columns}
		table := printable.NewTable(s)
		table.KeepColumns()
		table.Fit(printable.Fitting{Optional: []string{"B"}})
		table.Row("A", "B", "COUNT")
		b := map[bool]string{true: "second", false: "second, which is longer than the terminal"}[columns == 0]
		for _, rows := range [][][]string{{{"first", b, "7"}}, {{"x", "y", "12"}}, {{"longest", "y", "1"}}, {{"x", "y", "1"}}} {
			for _, row := range rows {
				table.Row(row...)
			}
			if err := table.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if s.String() != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", columns, s.String(), want)
		}
	}
}
