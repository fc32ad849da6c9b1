package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const good = `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"llama","prompt":"x"}}`

func known(model string) bool { return model == "llama" }

func TestBadLines(t *testing.T) {
	limits := DefaultLimits()
	limits.LineBytes = 400
	change := func(old, with string) string { return strings.Replace(good, old, with, 1) }
	for want, line := range map[string]string{
		"invalid_json_line":                     `{"custom_id":`,
		"invalid_json_line ":                    `[1]`,
		"invalid_json_line utf-8":               "{\"custom_id\":\"\xff\"}",
		"missing_required_parameter custom_id":  change(`"custom_id":"a",`, ``),
		"missing_required_parameter custom_id ": change(`"a"`, `""`),
		"duplicate_custom_id custom_id":         change(`"a"`, `"first"`),
		"invalid_method method":                 change(`POST`, `GET`),
		"mismatched_endpoint url":               change(`/v1/completions`, `/v1/embeddings`),
		"mismatched_endpoint url ":              change(`/v1/completions`, `http://host/v1/completions?x`),
		"invalid_request body":                  change(`{"model":"llama","prompt":"x"}`, `"x"`),
		"missing_required_parameter body.model": change(`"model":"llama",`, ``),
		"model_not_found body.model":            change(`llama`, `gpt-9`),
		"invalid_value body.stream":             change(`"prompt"`, `"stream":true,"prompt"`),
		"invalid_request body ":                 change(`"llama"`, `7`),
		"line_too_large":                        change(`"x"`, `"`+strings.Repeat("x", 400)+`"`),
	} {
		r := NewReader(strings.NewReader(strings.Replace(good, `"a"`, `"first"`, 1)+"\n"+line+"\n"+strings.Replace(good, `"a"`, `"last"`, 1)), "/v1/completions", limits, known)
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		_, err := r.Next()
		var bad *LineError
		code, param, _ := strings.Cut(strings.TrimSpace(strings.TrimSuffix(want, " utf-8")), " ")
		if !errors.As(err, &bad) || bad.Code != code || bad.Param != param || bad.Line != 2 {
			t.Errorf("%s: %v", want, err)
		}
		if last, err := r.Next(); err != nil || last.CustomID != "last" || last.Number != 3 {
			t.Errorf("%s: the next line: %+v, %v", want, last, err)
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the end: %v", want, err)
		}
	}
}

func TestGoodLines(t *testing.T) {
	text := "\xef\xbb\xbf" + good + "\r\n\n  \n" + strings.Replace(strings.Replace(good, `"a"`, `"b"`, 1), "/v1/completions", "https://api.example.com/v1/completions", 1)
	r := NewReader(iotest.OneByteReader(strings.NewReader(text)), "/v1/completions", DefaultLimits(), known)
	for _, id := range []string{"a", "b"} {
		line, err := r.Next()
		if err != nil || line.CustomID != id || string(line.Body) != `{"model":"llama","prompt":"x"}` {
			t.Fatalf("%+v, %v", line, err)
		}
		if got := text[line.Offset : line.Offset+line.Bytes]; !strings.Contains(got, `"`+id+`"`) || strings.Count(got, "{") != 2 {
			t.Errorf("the range of %s is %q", id, got)
		}
	}
}

func TestReadErrorsEndTheInspection(t *testing.T) {
	broken := io.MultiReader(strings.NewReader(good+"\n"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, _, err := Validate(NewReader(broken, "/v1/completions", DefaultLimits(), nil), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

func TestInspectLimits(t *testing.T) {
	limits := DefaultLimits()
	limits.Requests = 3
	file := func(lines int) string {
		var b strings.Builder
		for i := range lines {
			b.WriteString(strings.Replace(good, `"a"`, fmt.Sprintf(`"%d"`, i), 1) + "\n")
		}
		return b.String()
	}
	for lines, want := range map[int]string{0: "empty_file", 3: "", 4: "too_many_requests", 9: "too_many_requests"} {
		in, problems, err := Validate(NewReader(strings.NewReader(file(lines)), "/v1/completions", limits, known), nil)
		got := ""
		if len(problems) > 0 {
			got = problems[0].Code
		}
		if err != nil || got != want || (want == "") != (len(in.Chunks) > 0) || len(problems) > 1 {
			t.Errorf("%d lines: %v, %v, %v", lines, in, problems, err)
		}
	}
	seen := 0
	_, problems, _ := Validate(NewReader(strings.NewReader(strings.Repeat("bad\n", 500)), "/", DefaultLimits(), nil), func(*LineError) error { seen++; return nil })
	if len(problems) != MaxProblems || seen != 500 {
		t.Errorf("%d problems are listed, %d seen", len(problems), seen)
	}
}

// Chunks cover the lines: reading each from its position gives the same requests as reading the file.
func TestChunksCoverTheFile(t *testing.T) {
	var file strings.Builder
	for i := range 200 {
		if i%7 == 0 {
			file.WriteString("\n")
		}
		file.WriteString(strings.Replace(good, `"a"`, fmt.Sprintf(`"%d"`, i), 1) + "\n")
	}
	input, problems, err := Validate(NewReader(strings.NewReader(file.String()), "/v1/completions", DefaultLimits(), known), nil)
	if err != nil || len(problems) > 0 || len(input.Chunks) != 4 || len(input.Load) != 1 || input.Load[0].Model != "llama" || input.Load[0].Requests != 200 {
		t.Fatalf("%+v, %v, %v", input, problems, err)
	}
	chunks := input.Chunks
	r := Record{Chunks: chunks}
	n := 0
	for i, c := range chunks {
		offset, first := r.Position(i)
		if first != n {
			t.Errorf("chunk %d starts at request %d, want %d", i, first, n)
		}
		in := NewReader(strings.NewReader(file.String()[offset:offset+c.Bytes]), "/v1/completions", DefaultLimits(), nil)
		for range c.Lines {
			line, err := in.Next()
			if err != nil || line.CustomID != fmt.Sprint(n) {
				t.Fatalf("request %d: %+v, %v", n, line, err)
			}
			n++
		}
		if _, err := in.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("chunk %d is too long: %v", i, err)
		}
	}
	if n != 200 {
		t.Errorf("%d requests", n)
	}
}

// simpleLines is the twin of Reader: it holds the whole file.
func simpleLines(text []byte, limit int) (ids []string, bad int) {
	seen := map[string]bool{}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if i == 0 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if len(line) <= limit && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var in struct {
			CustomID *string `json:"custom_id"`
			Method   *string
			URL      *string
			Body     json.RawMessage
		}
		var body struct {
			Model  string
			Stream bool
		}
		ok := len(line) <= limit && json.Unmarshal(line, &in) == nil && in.CustomID != nil && *in.CustomID != "" && len(*in.CustomID) <= maxCustomID && !seen[*in.CustomID]
		if ok {
			seen[*in.CustomID] = true
		}
		ok = ok && in.Method != nil && *in.Method == "POST" && in.URL != nil && *in.URL == "/v1/completions" &&
			len(in.Body) > 0 && in.Body[0] == '{' && json.Unmarshal(in.Body, &body) == nil && body.Model != "" && !body.Stream
		if ok {
			ids = append(ids, *in.CustomID)
		} else {
			bad++
		}
	}
	return ids, bad
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(good + "\n\n" + good + "\r\n{}\nnull\n[]"))
	f.Add([]byte("\xef\xbb\xbf" + strings.Repeat(" ", 300) + "\n" + good))
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("://")) {
			t.Skip() // the twin knows no whole URLs
		}
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if !bytes.Equal(bytes.ToValidUTF8(line, nil), line) {
				t.Skip() // the twin does not check UTF-8
			}
		}
		limits := DefaultLimits()
		limits.LineBytes = 256
		r := NewReader(bytes.NewReader(text), "/v1/completions", limits, nil)
		var ids []string
		bad := 0
		for {
			line, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			var invalid *LineError
			if errors.As(err, &invalid) {
				bad++
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, line.CustomID)
			again := NewReader(bytes.NewReader(text[line.Offset:line.Offset+line.Bytes]), "/v1/completions", limits, nil)
			if same, err := again.Next(); err != nil || same.CustomID != line.CustomID {
				t.Fatalf("%q from its range: %+v, %v", line.CustomID, same, err)
			}
		}
		wantIDs, wantBad := simpleLines(text, 256)
		if fmt.Sprint(ids) != fmt.Sprint(wantIDs) || bad != wantBad {
			t.Errorf("%q: %q and %d errors, want %q and %d", text, ids, bad, wantIDs, wantBad)
		}
	})
}
