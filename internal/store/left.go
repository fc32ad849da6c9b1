package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// recordLeft records on disk whether another member alone holds all data.
func (m *membership) recordLeft(left bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if left == m.left {
		return nil
	}
	own := m.s.member
	own.Left = left
	if err := own.write(m.s.opts.Dir); err != nil {
		return fmt.Errorf("recording that another member holds all data: %w", err)
	}
	m.left = left
	return nil
}

// replyMoved records that another member holds all data, and responds.
func (m *membership) replyMoved(msg *nats.Msg) {
	own := m.s.member
	if string(msg.Data) == own.ID {
		return
	}
	if err := m.recordLeft(true); err != nil {
		m.s.log.Error("leaving the store's cluster failed", "err", err)
		return
	}
	_ = msg.Respond([]byte(own.Node)) // the other repeats its message
}

// removeLeft removes the void data of a member that has left its cluster.
func removeLeft(dir string) error {
	m, err := readMember(dir)
	if err != nil || !m.Left {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(dir, server.JetStreamStoreDir)), os.Remove(filepath.Join(dir, memberFile)))
}
