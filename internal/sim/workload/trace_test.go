package workload

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
)

const ms = time.Millisecond

func openText(t *testing.T, text string, o TraceOptions) *Trace {
	t.Helper()
	tr, err := OpenTrace("t", strings.NewReader(text), o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// rowsOf returns up to limit rows of a trace.
func rowsOf(tr *Trace, limit int) ([]TraceRow, error) {
	var rows []TraceRow
	for len(rows) < limit {
		row, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func mustRows(t *testing.T, text string, o TraceOptions) []TraceRow {
	t.Helper()
	rows, err := rowsOf(openText(t, text, o), math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

const (
	mooncakeText = `{"timestamp": 1000, "input_length": 1030, "output_length": 500, "hash_ids": [0, 7, 8]}
{"timestamp": 1250, "input_length": 400, "output_length": 5, "hash_ids": [9]}

{"timestamp": 4000, "input_length": 1600, "output_length": 20, "hash_ids": [0, 7, 12, 13]}
`
	bailianText = `{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}
{"chat_id": 160, "parent_chat_id": -1, "timestamp": 62, "input_length": 16, "output_length": 1, "type": "search", "turn": 1, "hash_ids": [-4]}
{"chat_id": 161, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 50, "output_length": 8, "type": "text", "turn": 2, "hash_ids": [1, 2, 5, 6]}
{"chat_id": 162, "parent_chat_id": 161, "timestamp": 70, "input_length": 60, "output_length": 8, "type": "text", "turn": 3, "hash_ids": null}
`
	azure2023Text = "t_s,input_tokens,output_tokens\n0.0000,374,44\n4.3146,396,109\n4.5419,879,55\n"
	azure2024Text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.001163+00:00,1452,3\n2024-05-12 00:00:00.002163+00:00,18,0\n"
	azureOldText  = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,4808,10\r\n2023-11-16 18:15:50.9951690,3180,8\r\n"
	burstText     = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n110.5,GPT-4,417,505,922,API log\n"
	burstTextV2   = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,s1,1.5,ChatGPT,472,18,490,Conversation log\n"
	sageText      = `request_id,batch_id,client_tenant,request_type,scenario,sla,utility,regions,model_type,workload_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,-1,tenant-1,2,Chat,10,3,eu,A,prod,0,0.5,1,100,20
1,-1,tenant-2,2,Chat,3600,2,us,A,prod,0,1.5,1,101,21
2,0,tenant-1,2,Batch,86400,1,us,B,dev,0,2,128,102,22
3,0,tenant-1,2,Batch,86400,1,us,B,IW-N,0,2.5,128,103.0,23
4,0,tenant-1,2,Batch,86400,1,us,B,iw,0,3,128,104,24
`
)

func TestReaders(t *testing.T) {
	for _, c := range []struct {
		name, text, format string
		want               []TraceRow
	}{
		{"mooncake", mooncakeText, "mooncake", []TraceRow{
			{Number: 1, Line: 1, At: 0, InputTokens: 1030, OutputTokens: 500, Blocks: []uint64{0, 7, 8}, BlockTokens: 512, Session: "block-7"},
			{Number: 2, Line: 2, At: 250 * ms, InputTokens: 400, OutputTokens: 5, Blocks: []uint64{9}, BlockTokens: 512},
			{Number: 3, Line: 4, At: 3000 * ms, InputTokens: 1600, OutputTokens: 20, Blocks: []uint64{0, 7, 12, 13}, BlockTokens: 512, Session: "block-7"},
		}},
		{"bailian", bailianText, "bailian", []TraceRow{
			{Number: 1, Line: 1, At: 0, InputTokens: 40, OutputTokens: 132, Blocks: []uint64{1, 2, 3}, BlockTokens: 16, Session: "chat-159"},
			{Number: 2, Line: 2, At: 886 * ms, InputTokens: 16, OutputTokens: 1, Blocks: []uint64{math.MaxUint64 - 3}, BlockTokens: 16, Session: "chat-160"},
			{Number: 3, Line: 3, At: 1386 * ms, InputTokens: 50, OutputTokens: 8, Blocks: []uint64{1, 2, 5, 6}, BlockTokens: 16, Session: "chat-159"},
			{Number: 4, Line: 4, At: 8886 * ms, InputTokens: 60, OutputTokens: 8, BlockTokens: 16, Session: "chat-159"},
		}},
		{"azure-2023", azure2023Text, "azure-2023", []TraceRow{
			{Number: 1, Line: 2, InputTokens: 374, OutputTokens: 44},
			{Number: 2, Line: 3, At: 4314600 * time.Microsecond, InputTokens: 396, OutputTokens: 109},
			{Number: 3, Line: 4, At: 4541900 * time.Microsecond, InputTokens: 879, OutputTokens: 55},
		}},
		{"azure-2024", azure2024Text, "azure-2024", []TraceRow{
			{Number: 1, Line: 2, InputTokens: 1452, OutputTokens: 3},
			{Number: 2, Line: 3, At: ms, InputTokens: 18},
		}},
		{"azure without zone", azureOldText, "azure-2024", []TraceRow{
			{Number: 1, Line: 2, InputTokens: 4808, OutputTokens: 10},
			{Number: 2, Line: 3, At: 4314579 * time.Microsecond, InputTokens: 3180, OutputTokens: 8},
		}},
		{"byte-order mark", "\ufeff" + azure2023Text[:45], "azure-2023", []TraceRow{{Number: 1, Line: 2, InputTokens: 374, OutputTokens: 44}}},
		{"unnamed column", ",TIMESTAMP,ContextTokens,GeneratedTokens\n7,2024-05-12 00:00:00+00:00,1452,3\n", "azure-2024", []TraceRow{{Number: 1, Line: 2, InputTokens: 1452, OutputTokens: 3}}},
		{"burstgpt", burstText, "burstgpt", []TraceRow{
			{Number: 1, Line: 2, InputTokens: 472, OutputTokens: 18, Model: "ChatGPT"},
			{Number: 2, Line: 3, At: 40 * time.Second, InputTokens: 1087, Model: "ChatGPT"},
			{Number: 3, Line: 4, At: 105500 * ms, InputTokens: 417, OutputTokens: 505, Model: "GPT-4"},
		}},
		{"burstgpt with sessions", burstTextV2, "burstgpt", []TraceRow{{Number: 1, Line: 2, InputTokens: 472, OutputTokens: 18, Model: "ChatGPT", Session: "s1"}}},
		{"sageserve", sageText, "sageserve", []TraceRow{
			{Number: 1, Line: 2, InputTokens: 100, OutputTokens: 20, Model: "A", User: "tenant-1", Region: "eu", Tier: service.TierFast},
			{Number: 2, Line: 3, At: time.Second, InputTokens: 101, OutputTokens: 21, Model: "A", User: "tenant-2", Region: "us", Tier: service.TierNormal},
			{Number: 3, Line: 4, At: 1500 * ms, InputTokens: 102, OutputTokens: 22, Model: "B", User: "tenant-1", Region: "us", Tier: service.TierDeferred},
			{Number: 4, Line: 5, At: 2 * time.Second, InputTokens: 103, OutputTokens: 23, Model: "B", User: "tenant-1", Region: "us", Tier: service.TierNormal},
			{Number: 5, Line: 6, At: 2500 * ms, InputTokens: 104, OutputTokens: 24, Model: "B", User: "tenant-1", Region: "us", Tier: service.TierFast},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, packed := range []bool{false, true} {
				text := c.text
				if packed {
					text = gzipped(t, text)
				}
				tr := openText(t, text, TraceOptions{})
				rows, err := rowsOf(tr, 100)
				if err != nil || tr.Format() != c.format {
					t.Fatalf("format %s, error %v; want %s", tr.Format(), err, c.format)
				}
				if !slices.EqualFunc(rows, c.want, sameRow) {
					t.Errorf("gzip=%v: rows\n%+v\nwant\n%+v", packed, rows, c.want)
				}
			}
		})
	}
}

func sameRow(a, b TraceRow) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestMalformedTraces(t *testing.T) {
	const head = "t_s,input_tokens,output_tokens\n"
	const rates = "model,client,t_s,rate_rps,cv,dist,p1,p2\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "reading t:1: the first line is empty: must be a header or a JSON object"},
		{"unknown header", "a,b\n1,2\n", `reading t:1: the first line must have the columns or JSON keys of a trace format (mooncake, bailian, azure-2023, azure-2024, burstgpt, sageserve, servegen-rates, servegen-total), got "a,b"`},
		{"two columns", "t_s,input_tokens,output_tokens,Input_Tokens\n0,1,2,3\n", `reading t:1: duplicate column "input_tokens": rename or remove one`},
		{"long header", "a," + strings.Repeat("é", 40) + "\n1,2\n", `got "a,` + strings.Repeat("é", 29) + `"...`},
		{"odd header", "a" + strings.Repeat("é", 40) + "\n1,2\n", `got "a` + strings.Repeat("é", 29) + `"...`},
		{"unknown object", `{"x":1}`, `servegen-total), got "{\"x\":1}"`},
		{"not a number", head + "0,1,2\n1,x,2\n", `reading t:3: input_tokens: must be an integer from 0 to 4194304, got "x"`},
		{"negative", head + "0,1,-2\n", `reading t:2: output_tokens: must be an integer from 0 to 4194304, got "-2"`},
		{"fraction", head + "0,1.5,2\n", `got "1.5"`},
		{"gigantic", head + "0,9999999999,2\n", `got "9999999999"`},
		{"no time", head + "NaN,1,2\n", `reading t:2: t_s: must be a number of seconds, got "NaN"`},
		{"far time", head + "1e300,1,2\n", `reading t:2: t_s: must be a number of seconds, got "1e300"`},
		{"short row", head + "0,1\n", "reading t:2: row: must have 3 fields like the header, got 2"},
		{"open quote", head + "0,1,1\n0,\"1,2\n", "reading t:3: row: extraneous or missing \" in quoted-field"},
		{"no date", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", `reading t:2: TIMESTAMP: must be a time since 1970 such as 2024-05-10 00:00:00.009930+00:00, got "yesterday"`},
		{"no object", mooncakeText + "5\n", `reading t:5: row: must be a JSON object, got "5"`},
		{"text in json", strings.Replace(mooncakeText, "400", `"many"`, 1), `reading t:2: input_length: must be an integer from 0 to 4194304, got "\"many\""`},
		{"missing in json", strings.Replace(mooncakeText, `"output_length": 5,`, "", 1), `reading t:2: output_length: must be an integer from 0 to 4194304, got ""`},
		{"late in json", strings.Replace(mooncakeText, "1250", "true", 1), `reading t:2: timestamp: must be a number of milliseconds, got "true"`},
		{"ids no list", strings.Replace(mooncakeText, "[9]", "9", 1), `reading t:2: hash_ids: must be a list of block IDs, got "9"`},
		{"ids no numbers", strings.Replace(mooncakeText, "[9]", `["a"]`, 1), `reading t:2: hash_ids: must be block IDs of at most 64 bits, got "\"a\""`},
		{"long line", `{"timestamp": 1, "input_length": 1` + strings.Repeat(" ", maxLine), "reading t:1: the line is longer than 4194304 bytes"},
		{"broken gzip", "\x1f\x8b\x00\x00", "reading t: decompressing gzip: "},
		{"rate", rates + "m,0,0,-1,1,Gamma,1,1\n", `reading t:2: rate_rps: must be a number from 0 to 1e+06, got "-1"`},
		{"window", rates + "m,0,x,1,1,Gamma,1,1\n", `reading t:2: t_s: must be a number from 0 to 2.147483647e+09, got "x"`},
		{"distribution", rates + "m,0,0,1,1,Zipf,1,1\n", `reading t:2: dist: must be Poisson, Gamma or Weibull, got "Zipf"`},
		{"shape", rates + "m,0,0,1,1,Weibull,,1\n", `reading t:2: p1: must be a number from 0 to 1e+09, got ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := OpenTrace("t", strings.NewReader(c.text), TraceOptions{})
			if err == nil {
				_, err = rowsOf(tr, 100)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestReadErrorIsReported(t *testing.T) {
	broken := io.MultiReader(strings.NewReader(azure2023Text), failing{})
	tr, err := OpenTrace("t", broken, TraceOptions{})
	if err == nil {
		_, err = rowsOf(tr, 100)
	}
	if !errors.Is(err, errDisk) || !strings.HasPrefix(err.Error(), "reading t:") {
		t.Fatalf("error %v, want the reader's", err)
	}
}

var errDisk = errors.New("disk on fire")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }

func TestRowsAreSortedWithinTheWindow(t *testing.T) {
	var b strings.Builder
	b.WriteString("t_s,input_tokens,output_tokens\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "%d,%d,1\n", i^7, i) // each up to 7 rows from its place
	}
	rows := mustRows(t, b.String(), TraceOptions{})
	if len(rows) != 5000 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, r := range rows {
		if r.At != time.Duration(i)*time.Second {
			t.Fatalf("row %d comes at %s", i, r.At)
		}
	}
}

func TestRowTooFarOutOfOrder(t *testing.T) {
	text := func(late int) string {
		var b strings.Builder
		b.WriteString("t_s,input_tokens,output_tokens\n")
		for i := 1; i <= 3000; i++ {
			fmt.Fprintf(&b, "%d,1,1\n", i)
			if i == late {
				b.WriteString("0.5,1,1\n")
			}
		}
		return b.String()
	}
	if rows := mustRows(t, text(ReorderWindow), TraceOptions{}); rows[0].Line != ReorderWindow+2 {
		t.Errorf("the late row is at line %d of the first row", rows[0].Line)
	}
	_, err := rowsOf(openText(t, text(ReorderWindow+1), TraceOptions{}), math.MaxInt)
	want := "reading t:1027: the row is 500ms too early for its position: rows may be at most 1024 rows out of order"
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
}

func TestReplayFilters(t *testing.T) {
	var b strings.Builder
	b.WriteString("t_s,input_tokens,output_tokens\n")
	for i := range 100 {
		fmt.Fprintf(&b, "%d,%d,1\n", i, 10*i)
	}
	tr := openText(t, b.String(), TraceOptions{From: 20 * time.Second, To: 60 * time.Second, RateScale: 4, MaxInput: 500})
	rows, err := rowsOf(tr, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 31 || rows[0].At != 0 || rows[30].At != 7500*ms {
		t.Errorf("%d rows from %s to %s, want 31 from 0s to 7.5s", len(rows), rows[0].At, rows[len(rows)-1].At)
	}
	if tr.Skipped() != 9 { // seconds 51..59
		t.Errorf("%d rows omitted, want 9", tr.Skipped())
	}
}

func TestTraceOptionErrors(t *testing.T) {
	for _, c := range []struct {
		o    TraceOptions
		want string
	}{
		{TraceOptions{RateScale: -1}, "rate scale: must be a positive number, got -1"},
		{TraceOptions{RateScale: math.NaN()}, "rate scale: must be a positive number, got NaN"},
		{TraceOptions{From: -1}, "from: must not be negative, got -1ns"},
		{TraceOptions{From: 2, To: 2}, "to: must be after from (2ns), got 2ns"},
		{TraceOptions{MaxInput: -5}, "max input: must not be negative, got -5"},
		{TraceOptions{Weights: []Weight{{"us", -1}}}, "weight of us: must be at least 0, got -1"},
		{TraceOptions{Weights: []Weight{{"us", 0}}}, "weights: the sum must be greater than 0, got 0"},
	} {
		if _, err := OpenTrace("t", strings.NewReader(azure2023Text), c.o); err == nil || err.Error() != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}

func TestRegionsFollowWeightsAndSessions(t *testing.T) {
	var b strings.Builder
	for i := range 6000 {
		parent := i - 1
		if i%3 == 0 {
			parent = -1
		}
		fmt.Fprintf(&b, `{"chat_id": %d, "parent_chat_id": %d, "timestamp": %d, "input_length": 1, "output_length": 1}`+"\n", i, parent, i)
	}
	o := TraceOptions{Seed: 9, Weights: []Weight{{"us", 2}, {"eu", 1}, {"asia", 0}}}
	rows := mustRows(t, b.String(), o)
	count, home := map[string]int{}, map[string]string{}
	for _, r := range rows {
		count[r.Region]++
		if was, ok := home[r.Session]; ok && was != r.Region {
			t.Fatalf("session %s moved from %s to %s", r.Session, was, r.Region)
		}
		home[r.Session] = r.Region
	}
	near(t, "share of us", float64(count["us"])/6000, 2.0/3, 0.05)
	if count["asia"] != 0 || count["us"]+count["eu"] != 6000 {
		t.Errorf("rows by region: %v", count)
	}
	slices.Reverse(o.Weights)
	for i, r := range mustRows(t, b.String(), o) {
		if r.Region != rows[i].Region {
			t.Fatal("the order of the weights changed a row's region")
		}
	}
	for _, r := range mustRows(t, sageText, TraceOptions{Weights: []Weight{{"us", 1}, {"eu", 1}}}) {
		if want := map[string]string{"tenant-2": "us"}[r.User]; want != "" && r.Region != want {
			t.Errorf("a row of %s went to %s", want, r.Region)
		}
	}
	if own := mustRows(t, sageText, TraceOptions{})[0].Region; own != "eu" {
		t.Errorf("without weights the first row's region is %q, want its own", own)
	}
}

func TestPromptsSharePrefixesByBlocks(t *testing.T) {
	rows := mustRows(t, mooncakeText, TraceOptions{})
	a, b, c := rows[0].Request(1, "m"), rows[1].Request(1, "m"), rows[2].Request(1, "m")
	for i, r := range []Request{a, b, c} {
		if got := CountTokens(r.Messages[0].Content); got != rows[i].InputTokens || r.InputTokens != got {
			t.Errorf("row %d: %d tokens, want %d", i, got, rows[i].InputTokens)
		}
	}
	if got := commonPrefix(a.Messages[0].Content, c.Messages[0].Content); got < 2*512*wordBytes || got > 2*512*wordBytes+wordBytes {
		t.Errorf("rows that share two blocks share %d bytes", got)
	}
	if a.Session != c.Session || b.Session != "row-2" || a.Model != "m" {
		t.Errorf("sessions %q, %q, %q", a.Session, b.Session, c.Session)
	}
}

func TestRowsWithoutBlocksAreUnique(t *testing.T) {
	rows := mustRows(t, azure2023Text, TraceOptions{})
	one, two := rows[0].Request(1, ""), rows[1].Request(1, "")
	if commonPrefix(one.Messages[0].Content, two.Messages[0].Content) > 8 {
		t.Error("two rows have the same start")
	}
	if again := rows[0].Request(1, ""); again.Messages[0] != one.Messages[0] {
		t.Error("the same row and seed yielded another text")
	}
	if other := rows[0].Request(2, ""); other.Messages[0] == one.Messages[0] {
		t.Error("another seed yielded the same text")
	}
	short := TraceRow{Number: 3, InputTokens: 40, Blocks: []uint64{1}, BlockTokens: 16}
	if got := CountTokens(short.Request(1, "").Messages[0].Content); got != 40 {
		t.Errorf("a row longer than its blocks has %d tokens, want 40", got)
	}
	if empty := (TraceRow{Number: 4}).Request(1, ""); empty.InputTokens != 1 || empty.OutputTokens != 1 {
		t.Errorf("an empty row requests %d of %d", empty.OutputTokens, empty.InputTokens)
	}
}

func TestForgottenChatsStartNewSessions(t *testing.T) {
	c := chats{session: map[string]string{}}
	c.sessionOf("root", "-1")
	for i := range maxChats - 1 {
		c.sessionOf(fmt.Sprint("x", i), "-1")
	}
	if got := c.sessionOf("child", "root"); got != "chat-root" {
		t.Errorf("a remembered parent yielded %q", got)
	}
	if got := c.sessionOf("late", "root"); got != "chat-late" { // the child took root's place
		t.Errorf("a forgotten parent yielded %q", got)
	}
	if len(c.session) != maxChats || len(c.order) != maxChats {
		t.Errorf("%d chats remembered in %d slots", len(c.session), len(c.order))
	}
}
