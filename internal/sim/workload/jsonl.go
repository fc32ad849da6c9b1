package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// The trace formats with one JSON object per line.
const (
	// formatMooncake has timestamps in milliseconds and blocks of 512 tokens.
	formatMooncake = "mooncake"
	// formatBailian has timestamps in seconds, blocks of 16 tokens, and the chat that a row continues.
	formatBailian = "bailian"
)

const (
	mooncakeBlock = 512
	bailianBlock  = 16
	// maxLine limits a line: a prompt of a million tokens in blocks of 16 has 65,536 IDs, well below it.
	maxLine = 4 << 20
	// maxChats limits the chats remembered to find the conversation of a row.
	maxChats = 1 << 16
)

// jsonRow is a line with raw fields, which are checked afterwards so that errors can contain them.
type jsonRow struct {
	Timestamp    json.RawMessage `json:"timestamp"`
	InputLength  json.RawMessage `json:"input_length"`
	OutputLength json.RawMessage `json:"output_length"`
	HashIDs      json.RawMessage `json:"hash_ids"`
	ChatID       json.RawMessage `json:"chat_id"`
	ParentChatID json.RawMessage `json:"parent_chat_id"`
}

// jsonlTrace reads a trace with one JSON object per line.
type jsonlTrace struct {
	file  string
	lines *bufio.Scanner
	line  int
	rows  int
	unit  time.Duration
	block int
	chats chats
}

// openJSONL opens a JSON-lines trace in the format that its first line determines.
func openJSONL(name string, in *bufio.Reader, first string) (string, source, error) {
	t := &jsonlTrace{file: name, lines: bufio.NewScanner(in)}
	t.lines.Buffer(nil, maxLine)
	switch jsonlFormat(first) {
	case formatBailian:
		t.unit, t.block, t.chats = time.Second, bailianBlock, chats{session: map[string]string{}}
		return formatBailian, t, nil
	case formatMooncake:
		t.unit, t.block = time.Millisecond, mooncakeBlock
		return formatMooncake, t, nil
	}
	return "", nil, unknownFormat(name, first, Formats())
}

// jsonlFormat detects the format from the first line; "" if it is unknown.
func jsonlFormat(first string) string {
	switch {
	case strings.Contains(first, `"chat_id"`):
		return formatBailian
	case strings.Contains(first, `"timestamp"`) && strings.Contains(first, `"input_length"`):
		return formatMooncake
	}
	return ""
}

func (t *jsonlTrace) next() (TraceRow, error) {
	for t.lines.Scan() {
		t.line++
		if line := bytes.TrimSpace(t.lines.Bytes()); len(line) > 0 {
			return t.row(line)
		}
	}
	switch err := t.lines.Err(); {
	case err == nil:
		return TraceRow{}, io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return TraceRow{}, fmt.Errorf("reading %s:%d: the line is longer than %d bytes", t.file, t.line+1, maxLine)
	default:
		return TraceRow{}, fmt.Errorf("reading %s:%d: %w", t.file, t.line+1, err)
	}
}

func (t *jsonlTrace) row(line []byte) (TraceRow, error) {
	var raw jsonRow
	if err := json.Unmarshal(line, &raw); err != nil {
		return TraceRow{}, fmt.Errorf("reading %s:%d: row: must be a JSON object, got %s: %w", t.file, t.line, excerpt(string(line)), err)
	}
	t.rows++
	row := TraceRow{Number: t.rows, Line: t.line, BlockTokens: t.block}
	var err error
	if row.At, err = t.at("timestamp").seconds(string(raw.Timestamp), t.unit); err != nil {
		return TraceRow{}, err
	}
	if row.InputTokens, err = t.at("input_length").tokens(string(raw.InputLength)); err != nil {
		return TraceRow{}, err
	}
	if row.OutputTokens, err = t.at("output_length").tokens(string(raw.OutputLength)); err != nil {
		return TraceRow{}, err
	}
	if row.Blocks, err = t.at("hash_ids").ids(raw.HashIDs); err != nil {
		return TraceRow{}, err
	}
	row.Session = t.session(raw, row.Blocks)
	return row, nil
}

func (t *jsonlTrace) at(field string) place { return place{t.file, t.line, field} }

// session returns the conversation of a row. Bailian contains it. Mooncake does not, but chains its
// blocks: all rows start with the same block, and those with the same second block continue the same
// text.
func (t *jsonlTrace) session(raw jsonRow, blocks []uint64) string {
	if t.chats.session != nil {
		return t.chats.sessionOf(string(raw.ChatID), string(raw.ParentChatID))
	}
	if len(blocks) > 1 {
		return "block-" + strconv.FormatUint(blocks[1], 10)
	}
	return ""
}

// ids parses a list of block IDs; a missing list is empty.
func (p place) ids(raw json.RawMessage) ([]uint64, error) {
	text := strings.TrimSpace(string(raw))
	if text == "" || text == "null" {
		return nil, nil
	}
	if text[0] != '[' {
		return nil, p.bad("a list of block IDs", text)
	}
	text = strings.TrimSpace(text[1 : len(text)-1])
	if text == "" {
		return nil, nil
	}
	ids := make([]uint64, 0, strings.Count(text, ",")+1)
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		id, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			signed, err := strconv.ParseInt(part, 10, 64)
			if err != nil {
				return nil, p.bad("block IDs of at most 64 bits", part)
			}
			id = uint64(signed)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// chats maps chats to conversations. It remembers the last maxChats; a chat whose parent is forgotten
// starts a new conversation.
type chats struct {
	session map[string]string // by chat ID
	order   []string          // chat IDs, a ring buffer once full
	oldest  int
}

func (c *chats) sessionOf(chat, parent string) string {
	session, ok := c.session[parent]
	if !ok {
		session = "chat-" + chat
	}
	if _, again := c.session[chat]; !again {
		c.remember(chat)
	}
	c.session[chat] = session
	return session
}

// remember adds a chat, and drops the oldest if necessary.
func (c *chats) remember(chat string) {
	if len(c.order) < maxChats {
		c.order = append(c.order, chat)
		return
	}
	delete(c.session, c.order[c.oldest])
	c.order[c.oldest] = chat
	c.oldest = (c.oldest + 1) % maxChats
}
