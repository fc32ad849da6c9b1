package telemetry

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// InviteTTL is the lifetime of an invitation.
const InviteTTL = 15 * time.Minute

// InviteRequest is the certificate request of an invited operator: a PKCS #10 request in
// DER, and the proof of the invitation.
type InviteRequest struct {
	CSR   []byte `json:"csr"`
	Proof []byte `json:"proof"`
}

// InviteAnswer is the response: certificates in PEM, or the reason of the rejection.
type InviteAnswer struct {
	Chain   string `json:"chain,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// OpenInvite opens a mailbox at the balancer, for InviteTTL.
func (c *Client) OpenInvite(ctx context.Context, mailbox string) error {
	_, _, err := c.do(ctx, http.MethodPut, "/v1/invites/"+mailbox, nil)
	return err
}

// CloseInvite closes a mailbox. Closing one that is not open is not an error.
func (c *Client) CloseInvite(ctx context.Context, mailbox string) error {
	_, _, err := c.do(ctx, http.MethodDelete, "/v1/invites/"+mailbox, nil)
	return err
}

// InviteRequest returns the request in a mailbox; nil while there is none, ErrNotFound if
// the mailbox is not open.
func (c *Client) InviteRequest(ctx context.Context, mailbox string) (*InviteRequest, error) {
	return fetch[InviteRequest](ctx, c, "/v1/invites/"+mailbox+"/request")
}

// PutInviteRequest puts a request into a mailbox; ErrNotFound if it is not open, ErrConflict if it
// already contains one.
func (c *Client) PutInviteRequest(ctx context.Context, mailbox string, r InviteRequest) error {
	return c.send(ctx, "/v1/invites/"+mailbox+"/request", r)
}

// InviteAnswer returns the response to the request in a mailbox; nil while there is none,
// ErrNotFound if the mailbox is not open.
func (c *Client) InviteAnswer(ctx context.Context, mailbox string) (*InviteAnswer, error) {
	return fetch[InviteAnswer](ctx, c, "/v1/invites/"+mailbox+"/answer")
}

// PutInviteAnswer puts the response to the request into a mailbox.
func (c *Client) PutInviteAnswer(ctx context.Context, mailbox string, a InviteAnswer) error {
	return c.send(ctx, "/v1/invites/"+mailbox+"/answer", a)
}

// fetch gets a document; nil if there is none yet.
func fetch[T any](ctx context.Context, c *Client, path string) (*T, error) {
	status, body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	v := new(T)
	return v, json.Unmarshal(body, v)
}

// send puts a document.
func (c *Client) send(ctx context.Context, path string, v any) error {
	body, err := json.Marshal(v)
	if err == nil {
		_, _, err = c.do(ctx, http.MethodPut, path, body)
	}
	return err
}
