//go:build !linux

package wire

// hangups would watch many sockets for their ends; there is no one way to do so on
// this system, so that every connection is net/http's.
type hangups struct{}

func watchHangups() (*hangups, error) { return nil, nil }

func (*hangups) add(*session) error { return nil }
func (*hangups) remove(*session)    {}
func (*hangups) drop(*session)      {}
func (*hangups) run()               {}
func (*hangups) close()             {}
