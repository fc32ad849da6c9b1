package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/zeebo/xxh3"
)

// The simulated engine has no audio model. The text of a recording names its length and its hash, so
// that tests can check that every byte arrived. Speech is silence of a length that depends on the text.

// maxAudioBytes is the largest recording, that of vLLM and OpenAI.
const maxAudioBytes = 25 << 20

// transcript is the response of /v1/audio/transcriptions.
type transcript struct {
	Text  string `json:"text"`
	Usage struct {
		Type    string `json:"type"`
		Seconds int    `json:"seconds"`
	} `json:"usage"`
}

// serveTranscription returns the text of a recording, as JSON or as a text.
func (s *Server) serveTranscription(w http.ResponseWriter, r *http.Request) {
	text, seconds, err := s.transcribe(w, r)
	switch {
	case err != nil:
		writeError(w, err)
	case r.FormValue("response_format") == "text":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, text+"\n") // a disconnected client is not an error
	default:
		t := transcript{Text: text}
		t.Usage.Type, t.Usage.Seconds = "duration", seconds
		writeJSON(w, http.StatusOK, t)
	}
}

// transcribe reads a recording and returns its text and length.
func (s *Server) transcribe(w http.ResponseWriter, r *http.Request) (text string, seconds int, err error) {
	const bytesPerSecond, inMemory = 16_000, 32 << 20
	r.Body = http.MaxBytesReader(w, r.Body, maxAudioBytes+1<<20)
	if err := r.ParseMultipartForm(inMemory); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return "", 0, &problem{status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", param: "file", message: fmt.Sprintf("file: must have at most %d bytes", maxAudioBytes)}
		}
		return "", 0, malformed("", "reading the form: "+err.Error())
	}
	if _, _, err := s.resolve(r.FormValue("model")); err != nil {
		return "", 0, err
	}
	file, _, err := r.FormFile("file")
	if err != nil {
		return "", 0, malformed("file", "file: is required")
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if err != nil {
		return "", 0, malformed("file", "file: "+err.Error())
	}
	return fmt.Sprintf("A recording of %d bytes with the hash %016x.", len(content), xxh3.Hash(content)), len(content)/bytesPerSecond + 1, nil
}

type speechBody struct {
	Model string `json:"model"`
	Input string `json:"input"`
}

// serveSpeech returns silence of a tenth of a second for each word, as a WAV file in several pieces.
func (s *Server) serveSpeech(w http.ResponseWriter, r *http.Request) {
	const rate = 8000 // samples of one byte a second
	var b speechBody
	err := s.readBody(w, r, &b)
	if err == nil {
		_, _, err = s.resolve(b.Model)
	}
	words := len(strings.Fields(b.Input))
	if err == nil && words == 0 {
		err = malformed("input", "input: must contain at least one word")
	}
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "audio/wav")
	piece := make([]byte, rate/10)
	for i := range piece {
		piece[i] = 0x80 // silence
	}
	size := uint32(words * len(piece))
	head := append([]byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"), make([]byte, 20)...)
	binary.LittleEndian.PutUint32(head[4:], 36+size)
	binary.LittleEndian.PutUint32(head[24:], rate)
	binary.LittleEndian.PutUint32(head[28:], rate)
	binary.LittleEndian.PutUint16(head[32:], 1)
	binary.LittleEndian.PutUint16(head[34:], 8)
	copy(head[36:], "data")
	binary.LittleEndian.PutUint32(head[40:], size)
	_, _ = w.Write(head) // a disconnected client is not an error
	for range words {
		_ = http.NewResponseController(w).Flush()
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}
