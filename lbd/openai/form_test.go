package openai

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"
)

// formOf returns a form with boundary "b" whose parts are "HEADER|CONTENT".
func formOf(parts ...string) string {
	var out strings.Builder
	for _, p := range parts {
		header, content, _ := strings.Cut(p, "|")
		out.WriteString("--b\r\n" + header + "\r\n\r\n" + content + "\r\n")
	}
	return out.String() + "--b--\r\n"
}

const (
	modelPart = `Content-Disposition: form-data; name="model"|whisper`
	filePart  = "Content-Disposition: form-data; name=\"file\"; filename=\"a.mp3\"\r\nContent-Type: audio/mpeg|\x00\xff{\"model\":\"no\"}\r\n--\r\n-b"
)

// The model of a form is found wherever its part is, and its fields are replaced in place.
func TestForms(t *testing.T) {
	streamPart := `content-disposition:form-data;name=stream|True`
	for name, body := range map[string]string{
		"first": formOf(modelPart, filePart, streamPart), "last": formOf(streamPart, filePart, modelPart), "between": formOf(filePart, modelPart, streamPart),
	} {
		c, err := ReadForm([]byte(body), "b", 1)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if model, err := c.ModelName(); string(model) != "whisper" || err != nil {
			t.Errorf("%s: the model is %q, %v", name, model, err)
		}
		ch := c.Changes(endpoints["/v1/audio/transcriptions"], ResolvedModel{Model: "openai/whisper-large"})
		if got := string(applyEdits(nil, []byte(body), ch.Edits)); got != strings.Replace(body, "whisper", "openai/whisper-large", 1) || !ch.Stream {
			t.Errorf("%s: stream %v, sent as %q", name, ch.Stream, got)
		}
	}
}

func TestInvalidForms(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"nothing":             {"", `part 1, byte 0: expected the boundary "--b", got the end of the body`},
		"JSON":                {`{"model":"x"}`, `part 1, byte 0: expected the boundary "--b", got '{'`},
		"text before":         {"x\r\n" + formOf(modelPart), "expected the boundary"},
		"another boundary":    {strings.ReplaceAll(formOf(modelPart), "--b", "--c"), "expected the boundary"},
		"no end":              {strings.TrimSuffix(formOf(modelPart), "\r\n--b--\r\n"), `expected the boundary "--b", got the end of the body`},
		"text after":          {formOf(modelPart) + "x", "expected nothing after the last boundary, got 'x'"},
		"a longer boundary":   {strings.Replace(formOf(modelPart, filePart), "\r\n--b", "\r\n--bc", 1), "expected CRLF or -- after the boundary, got 'c'"},
		"bare line feeds":     {strings.ReplaceAll(formOf(modelPart), "\r\n", "\n"), "expected CRLF or -- after the boundary"},
		"a bare line feed":    {strings.Replace(formOf(modelPart), "whisper\r\n", "whisper\n", 1), "expected CRLF before the boundary"},
		"no content":          {strings.Replace(formOf(modelPart), "whisper\r\n", "", 1), "expected CRLF before the boundary"},
		"no header":           {formOf("|x"), "part 1, byte 5: expected a header Content-Disposition, got '\\r'"},
		"no disposition":      {formOf("Content-Type: text/plain|x"), "expected a header Content-Disposition"},
		"a folded header":     {formOf("Content-Disposition: form-data;\r\n name=\"model\"|x"), "expected one header Content-Disposition"},
		"two dispositions":    {formOf("Content-Disposition: form-data; name=\"a\"\r\n" + modelPart), "part 1, byte 47: expected one header Content-Disposition"},
		"two names":           {formOf(`Content-Disposition: form-data; name="a"; name="model"|x`), "expected one header Content-Disposition"},
		"an encoded name":     {formOf(`Content-Disposition: form-data; name*=utf-8''model|x`), "expected one header Content-Disposition"},
		"an escaped quote":    {formOf(`Content-Disposition: form-data; filename="a\"; name="model"|x`), "expected one header Content-Disposition"},
		"escaped backslashes": {formOf(`Content-Disposition: form-data; filename="a\\"; name="model"|x`), "expected one header Content-Disposition"},
		"an escape in a name": {formOf(`Content-Disposition: form-data; name="mod\el"|x`), "expected one header Content-Disposition"},
		"an attachment":       {formOf(`Content-Disposition: attachment; name="model"|x`), "expected one header Content-Disposition"},
		"encoded content":     {formOf(strings.Replace(modelPart, "|", "\r\nContent-Transfer-Encoding: base64|", 1)), "expected no Content-Transfer-Encoding, got 'C'"},
		"a long header":       {formOf("X: " + strings.Repeat("x", 5000) + "|x"), "part 1, byte 5: expected a header of at most 4096 bytes"},
		"too many parts":      {formOf(strings.Split(strings.Repeat(`Content-Disposition: form-data; name="a"|x`+"\n", 1001), "\n")[:1001]...), "expected at most 1000 parts"},
		"two models":          {formOf(modelPart, modelPart), `key "model": must occur only once`},
		"a file as model":     {formOf(`Content-Disposition: form-data; name="model"; filename="m"|x`), `key "model": must not be a file`},
	} {
		if _, err := ReadForm([]byte(c.body), "b", 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ... %s", name, err, c.want)
		}
	}
	if c, err := ReadForm([]byte(formOf(filePart)), "b", 1); err != nil {
		t.Error(err)
	} else if _, err := c.ModelName(); err == nil {
		t.Error("a form without a model has one")
	}
}

// Guarded parameters are found in fields too, also of lists.
func TestGuardedParametersOfForms(t *testing.T) {
	for _, name := range []string{"vllm_xargs", "vllm_xargs[a]", "kv_transfer_params"} {
		c, err := ReadForm([]byte(formOf(modelPart, `Content-Disposition: form-data; name="`+name+`"|{}`)), "b", 1)
		if err != nil {
			t.Fatal(err)
		}
		r := Render(1, endpoints["/v1/audio/transcriptions"], &c, ResolvedModel{Model: "m"})
		if refused := c.RefuseGuarded(r, 0); refused == nil || refused.Code != "parameter_not_allowed" {
			t.Errorf("%s: %v", name, refused)
		}
		r.Release()
	}
}

// Equal forms have equal fingerprints, whatever their boundaries; other files have others.
func TestFingerprintsOfForms(t *testing.T) {
	sum := func(body, boundary string) uint64 {
		c, err := ReadForm([]byte(body), boundary, 1)
		if err != nil {
			t.Fatal(err)
		}
		return c.Fingerprint(endpoints["/v1/audio/transcriptions"], ResolvedModel{Model: "m"})
	}
	one := formOf(modelPart, filePart)
	other := strings.ReplaceAll(strings.ReplaceAll(one, "\r\n--b", "\r\n--xyz"), "--b\r\n", "--xyz\r\n")
	if sum(one, "b") != sum(other, "xyz") {
		t.Error("the boundary changes the fingerprint")
	}
	if sum(one, "b") == sum(strings.Replace(one, "\x00\xff", "\x01\xff", 1), "b") {
		t.Error("the file does not change the fingerprint")
	}
}

// modelsOf returns the contents of the parts named model, as the standard library reads a form.
func modelsOf(body, boundary string) (models []string, err error) {
	r := multipart.NewReader(strings.NewReader(body), boundary)
	for {
		p, err := r.NextRawPart()
		if err != nil {
			if err == io.EOF {
				return models, nil
			}
			return models, err
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return models, err
		}
		if p.FormName() == "model" {
			models = append(models, string(content))
		}
	}
}

// FuzzForms checks that another parser finds the same model in every form that is accepted.
func FuzzForms(f *testing.F) {
	f.Add([]byte(formOf(modelPart, filePart)), "b")
	f.Add([]byte(formOf(filePart, modelPart)+"\r\n"), "b")
	f.Add([]byte("--b\r\ncontent-disposition: form-data; name=model; filename*=utf-8''x\r\n\r\n--b\r\n\r\n\r\n--b--"), "b")
	f.Fuzz(func(t *testing.T, body []byte, boundary string) {
		c, err := ReadForm(body, boundary, 1)
		if err != nil || boundary == "" || len(boundary) > 70 || strings.ContainsAny(boundary, "\r\n \t") {
			return
		}
		models, err := modelsOf(string(body), boundary)
		if err != nil {
			return // the engine rejects it too
		}
		name, missing := c.ModelName()
		if missing == nil != (len(models) == 1 && models[0] != "") || missing == nil && models[0] != string(name) {
			t.Fatalf("the model is %q, another parser finds %q", name, models)
		}
		if missing != nil {
			return
		}
		ch := c.Changes(endpoints["/v1/audio/transcriptions"], ResolvedModel{Model: "real"})
		if after, err := modelsOf(string(applyEdits(nil, body, ch.Edits)), boundary); err != nil || len(after) != 1 || after[0] != "real" {
			t.Fatalf("another parser finds %q after the edit: %v", after, err)
		}
	})
}

// Forms of the standard library's writer are accepted.
func TestWrittenForms(t *testing.T) {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	file, _ := w.CreateFormFile("file", `a "b" é.mp3`)
	_, _ = file.Write(bytes.Repeat([]byte{0, '\r', '\n', '-'}, 1000))
	_ = w.WriteField("model", "whisper")
	_ = w.WriteField("timestamp_granularities[]", "word")
	_ = w.WriteField("timestamp_granularities[]", "segment")
	odd, _ := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="x"; filename*=utf-8''%e2%82%ac`}, "Content-Type": {"text/plain"}})
	_, _ = odd.Write(nil)
	_ = w.Close()
	c, err := ReadForm(out.Bytes(), w.Boundary(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if model, err := c.ModelName(); string(model) != "whisper" || err != nil {
		t.Errorf("the model is %q, %v", model, err)
	}
}
