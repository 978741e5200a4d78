// Package heldport gives tests addresses at which a broker can listen, and that nobody
// else is given while it is away.
//
//	held:    bound, and does not listen ───────────────────────► the test ends
//	broker:       listens ──► is killed      listens again ──►
//
// It owns such ports until the test ends. It promises them only where the system can
// hold a port that nobody listens at, which is Linux; elsewhere it finds one that is
// free. It refuses to be more than that: tests import it, and nothing else does.
package heldport
