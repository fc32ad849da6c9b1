package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
)

// decodeAll decodes text that arrives in pieces of the given sizes, in turn, in place or into separate
// memory.
func decodeAll(text string, sizes []byte, inPlace bool) (content []byte, rest string, err error) {
	var d chunkDecoder
	for i := 0; len(text) > 0; i++ {
		n := len(text)
		if len(sizes) > 0 {
			n = min(n, 1+int(sizes[i%len(sizes)]))
		}
		piece := []byte(text[:n])
		room := piece
		if !inPlace {
			room = make([]byte, 1+n/2)
		}
		given, taken, err := d.decode(room, piece)
		content, text = append(content, room[:given]...), text[taken:]
		if err != nil {
			return content, text, err
		}
	}
	return content, text, io.ErrUnexpectedEOF
}

func TestChunksDecodeInAnyPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var encoded, want bytes.Buffer
		w := httputil.NewChunkedWriter(&encoded)
		for range random.IntN(6) {
			p := bytes.Repeat([]byte{byte('a' + random.IntN(26))}, random.IntN(80))
			want.Write(p)
			_, _ = w.Write(p)
		}
		_ = w.Close()
		encoded.WriteString("\r\nnext")
		sizes := make([]byte, 1+random.IntN(5))
		for i := range sizes {
			sizes[i] = byte(random.IntN(30))
		}
		for _, inPlace := range []bool{true, false} {
			got, rest, err := decodeAll(encoded.String(), sizes, inPlace)
			if err != io.EOF || !bytes.Equal(got, want.Bytes()) || rest != "next" {
				t.Fatalf("pieces %v: got %q, rest %q, %v, want %q", sizes, got, rest, err, want.Bytes())
			}
		}
	}
}

func FuzzChunks(f *testing.F) {
	for name, raw := range answers {
		if strings.HasPrefix(name, "chunked") {
			_, encoded, _ := strings.Cut(raw, "\r\n\r\n")
			f.Add(encoded, []byte{0, 3})
		}
	}
	f.Fuzz(func(t *testing.T, text string, sizes []byte) {
		content, rest, err := decodeAll(text, nil, true)
		for _, inPlace := range []bool{true, false} {
			again, restAgain, errAgain := decodeAll(text, sizes, inPlace)
			same := bytes.Equal(again, content) && rest == restAgain && (err == io.EOF) == (errAgain == io.EOF) && errors.Is(err, ErrMalformed) == errors.Is(errAgain, ErrMalformed)
			if !same {
				t.Fatalf("%q in pieces %v: got %q, %v, whole %q, %v", text, sizes, again, errAgain, content, err)
			}
		}
		if err == io.EOF {
			theirs, failed := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(text)))
			if failed != nil || !bytes.Equal(theirs, content) {
				t.Fatalf("%q: got %q, net/http %q, %v", text, content, theirs, failed)
			}
		}
	})
}

func FuzzHead(f *testing.F) {
	for _, raw := range answers {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var s headScanner
		end := 0
		for n := 0; n <= len(raw) && end == 0; n++ { // as it would arrive, byte by byte
			var err error
			if end, err = s.findEnd([]byte(raw[:n])); err != nil {
				return
			}
		}
		var whole headScanner
		if got, err := whole.findEnd([]byte(raw)); end > 0 && (err != nil || got != end) {
			t.Fatalf("%q: %d in pieces, %d and %v whole", raw, end, got, err)
		}
		var resp http.Response
		if end == 0 || parseHead(raw[:end], s.lines-1, &resp) != nil {
			return
		}
		if resp.StatusCode < 100 || resp.StatusCode > 999 {
			t.Fatalf("%q: status %d", raw, resp.StatusCode)
		}
		for name, values := range resp.Header {
			if !isToken(name) || len(values) == 0 {
				t.Fatalf("%q: field %q: %q", raw, name, values)
			}
			for _, v := range values {
				if !isText(v) || v != strings.Trim(v, " \t") {
					t.Fatalf("%q: field %q: %q", raw, name, v)
				}
			}
		}
	})
}
