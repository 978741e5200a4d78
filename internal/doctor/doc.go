// Package doctor names what is wrong with a cluster: causes, not symptoms, the heaviest
// first, each with its figures and the command to type next.
//
//	who asks (cmd) ── API ──► Facts ──Diagnose──► Findings   strandmq doctor
//	                            └─────Check─────► Verdict    strandmq check
//
// It owns the rules by which figures become causes. It is values in and values out: it
// knows neither the API nor a clock, and the same facts have the same findings. What was
// not asked is not guessed at: a finding needs its facts, and who asks says what did not
// answer.
//
// It promises that a broker on which nothing is wrong has no finding but notes, however
// busy it is: nothing is judged by the length of a backlog alone, but by what waits, for
// how long, and why.
package doctor
