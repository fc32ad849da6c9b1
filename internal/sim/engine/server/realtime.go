package server

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // required by RFC 6455
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// maxSocketMessage is the largest message of a WebSocket: several seconds of audio.
const maxSocketMessage = 1 << 20

// Opcodes of frames (RFC 6455, section 5.2).
const (
	opText  = 1
	opClose = 8
	opPing  = 9
	opPong  = 10
)

// realtimeEvent is a message of a realtime session in either direction.
type realtimeEvent struct {
	Type  string `json:"type"`
	Model string `json:"model,omitempty"`
	Audio string `json:"audio,omitempty"` // base64
	Text  string `json:"text,omitempty"`
	Error string `json:"error,omitempty"`
}

// realtimeSession is a realtime transcription over a WebSocket, with the events of vLLM.
type realtimeSession struct {
	conn  net.Conn
	in    *bufio.Reader
	audio int // bytes since the last commit
}

// serveRealtime serves a WebSocket: each commit is answered with the length of the audio before it.
func (s *Server) serveRealtime(w http.ResponseWriter, r *http.Request) {
	model, _, err := s.resolve(r.URL.Query().Get("model"))
	if err != nil {
		writeError(w, err)
		return
	}
	key := r.Header.Get("Sec-WebSocket-Key")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || key == "" {
		writeError(w, &problem{status: http.StatusUpgradeRequired, kind: "invalid_request_error", message: "this path needs a WebSocket"})
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, &problem{status: http.StatusInternalServerError, kind: "server_error", message: err.Error()})
		return
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-s.driver.done:
			conn.Close()
		case <-ended:
		}
	}()
	session := realtimeSession{conn: conn, in: rw.Reader}
	if session.send(realtimeEvent{Type: "session.created", Model: model}) != nil {
		return // the client has disconnected
	}
	for session.serveMessage() == nil {
	}
}

var errSessionEnded = errors.New("the client closed the session")

// serveMessage reads a frame and responds to it.
func (q *realtimeSession) serveMessage() error {
	op, payload, err := q.readFrame()
	switch {
	case err != nil:
		return err
	case op == opClose:
		_ = q.writeFrame(opClose, payload[:min(len(payload), 2)])
		return errSessionEnded
	case op == opPing:
		return q.writeFrame(opPong, payload)
	case op != opText:
		return nil
	}
	var e realtimeEvent
	if err := json.Unmarshal(payload, &e); err != nil {
		return q.send(realtimeEvent{Type: "error", Error: "invalid JSON: " + err.Error()})
	}
	switch e.Type {
	case "input_audio_buffer.append":
		q.audio += base64.StdEncoding.DecodedLen(len(e.Audio))
	case "input_audio_buffer.commit":
		text := fmt.Sprintf("Audio of %d bytes.", q.audio)
		q.audio = 0
		_ = q.send(realtimeEvent{Type: "transcription.delta", Text: text}) // the next write returns the error too
		return q.send(realtimeEvent{Type: "transcription.done", Text: text})
	}
	return nil
}

func (q *realtimeSession) send(e realtimeEvent) error {
	text, _ := json.Marshal(e) // strings always marshal
	return q.writeFrame(opText, text)
}

// readFrame reads a frame of the client, which is masked.
func (q *realtimeSession) readFrame() (op byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(q.in, head[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1] & 0x7f)
	if size >= 126 {
		long := make([]byte, 8)[:2+6*(size-126)]
		if _, err := io.ReadFull(q.in, long); err != nil {
			return 0, nil, err
		}
		size = uint64(binary.BigEndian.Uint16(long))
		if len(long) == 8 {
			size = binary.BigEndian.Uint64(long)
		}
	}
	if size > maxSocketMessage || head[1]&0x80 == 0 {
		return 0, nil, fmt.Errorf("a frame must be masked and have at most %d bytes", maxSocketMessage)
	}
	masked := make([]byte, 4+size)
	if _, err := io.ReadFull(q.in, masked); err != nil {
		return 0, nil, err
	}
	payload = masked[4:]
	for i := range payload {
		payload[i] ^= masked[i%4]
	}
	return head[0] & 0x0f, payload, nil
}

// writeFrame writes a frame of less than 64 KiB.
func (q *realtimeSession) writeFrame(op byte, payload []byte) error {
	frame := []byte{0x80 | op, byte(len(payload))}
	if len(payload) > 125 {
		frame[1] = 126
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(payload)))
	}
	_, err := q.conn.Write(append(frame, payload...))
	return err
}
