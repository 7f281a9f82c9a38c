package main

import (
	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// scramClient is the client's side of a login, which sarama leaves to its users.
type scramClient struct{ *scram.ClientConversation }

// Begin a login.
func (c *scramClient) Begin(user, password, authorizationID string) error {
	hash := scram.SHA512
	if config().Net.SASL.Mechanism == sarama.SASLTypeSCRAMSHA256 {
		hash = scram.SHA256
	}
	client, err := hash.NewClient(user, password, authorizationID)
	if err != nil {
		return err
	}
	c.ClientConversation = client.NewConversation()
	return nil
}
